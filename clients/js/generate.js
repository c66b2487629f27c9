#!/usr/bin/env node
// Writes catalogue.js and catalogue.d.ts from protocol/events.json. With --check it only compares.
import { readFileSync, writeFileSync } from "node:fs";

const HERE = new URL(".", import.meta.url);
const { events } = JSON.parse(readFileSync(new URL("../../protocol/events.json", HERE), "utf8"));

const TYPES = { uint: "Int", int: "Int", bool: "boolean", hash: "Buffer", bin: "Buffer", text: "string",
  hashes: "(Buffer | null)[]", uints: "(Int | null)[]", ints: "(Int | null)[]", conflicts: "Conflicts<Int>" };

const className = (topic) =>
  topic.split(/[._]/).map((word) => word[0].toUpperCase() + word.slice(1)).join("");

const code = [`// The events of the catalogue. Written by generate.js from protocol/events.json.
import { Event } from "./src/events.js";
`];
for (const { topic, doc, fields } of events) {
  code.push(`/** ${doc}. */\nexport class ${className(topic)} extends Event {`);
  for (const { name } of fields) code.push(`  get ${name}() { return this.fields.${name}; }`);
  code.push("}\n");
}
code.push("/** Of each topic: its class, its socket, and the types of its fields. */\n" +
  "export const CATALOGUE = new Map(Object.entries({");
for (const { topic, socket, fields } of events) {
  const types = fields.map(({ name, type }) => `${name}: "${type}"`).join(", ");
  code.push(`  "${topic}": {\n    make: ${className(topic)},\n    socket: "${socket}",\n    fields: { ${types} },\n  },`);
}
code.push("}));\n");

const types = [`// The events of the catalogue. Written by generate.js from protocol/events.json.
//
// A field is null when it could not be read, and undefined when this node does not pass it (an older
// version), or when a payload was not asked for. Int is number, or bigint where that was asked for.
import type { Conflicts, EventOf } from "./index.js";
`];
for (const { topic, doc, fields } of events) {
  types.push(`/** ${doc}. */\nexport interface ${className(topic)}Fields<Int = number> {`);
  for (const { name, type, unit, doc: about } of fields)
    types.push(`  /** ${unit ? `${unit}: ` : ""}${about} */\n  ${name}?: ${TYPES[type]} | null;`);
  types.push(`}\nexport type ${className(topic)}<Int = number> = EventOf<"${topic}", ${className(topic)}Fields<Int>>;\n`);
}
types.push("export interface Topics<Int = number> {");
for (const { topic } of events) types.push(`  "${topic}": ${className(topic)}<Int>;`);
types.push("}\n");

for (const [name, lines] of [["catalogue.js", code], ["catalogue.d.ts", types]]) {
  const target = new URL(name, HERE);
  const made = lines.join("\n");
  if (process.argv[2] === "--check") {
    if (readFileSync(target, "utf8") !== made) {
      console.error(`${name}: stale, run npm run generate`);
      process.exitCode = 1;
    }
  } else {
    writeFileSync(target, made);
  }
}
