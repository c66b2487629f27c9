// What the JavaScript decoder says of frames, as verdict.c. Any error but the client's own ends it.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { Event, Status } from "../../clients/js/src/events.js";
import { decodeMessage, decodeStatus, WireError } from "../../clients/js/src/wire.js";

export function told(topic, frame, bigint) {
  try {
    if (topic.startsWith("bridge.")) return new Status("low", topic, decodeStatus(frame, bigint)).json();
    const { node, run, seq, lost, n, pid, events, times } = decodeMessage(topic, frame, bigint);
    return events.map((fields, i) =>
      new Event(topic, node, run, seq + lost + i, n + i, pid, times[i], fields).json()).join("");
  } catch (error) {
    if (!(error instanceof WireError)) throw error;
    return `refused: ${error.message}`;
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href)
  for await (const line of createInterface({ input: process.stdin })) {
    const [topic, hex] = line.split(" ");
    console.log(told(topic, Buffer.from(hex, "hex"), false));
  }
