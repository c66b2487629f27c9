// What the JavaScript decoder says of frames, as verdict.c. Any error but the client's own ends it.
import { createInterface } from "node:readline";
import { Event, Status } from "../../clients/js/src/events.js";
import { decodeMessage, decodeStatus, WireError } from "../../clients/js/src/wire.js";

function told(topic, frame) {
  try {
    if (topic.startsWith("bridge.")) return new Status("low", topic, decodeStatus(frame, false)).json();
    const { node, run, seq, lost, n, pid, events, times } = decodeMessage(topic, frame, false);
    return events.map((fields, i) =>
      new Event(topic, node, run, seq + lost + i, n + i, pid, times[i], fields).json()).join("");
  } catch (error) {
    if (!(error instanceof WireError)) throw error;
    return `refused: ${error.message}`;
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const [topic, hex] = line.split(" ");
  console.log(told(topic, Buffer.from(hex, "hex")));
}
