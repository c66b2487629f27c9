#!/usr/bin/env node
/* Every event of a stream, once and in order, as JSON lines; what is missing is told.
 *
 *     consume.js URL[,URL...] STREAM NAME [SUBJECT] [--idle SECONDS]
 *
 * NAME is the consumer: the servers keep its place, the next start goes on there. */
import { parseArgs } from "node:util";
import { decode } from "@msgpack/msgpack";
import { AckPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { idle: { type: "string" } },
});
const [url, stream, name, subject = "coretap.>"] = positionals;
if (!name) {
  console.error("usage: consume.js URL[,URL...] STREAM NAME [SUBJECT] [--idle SECONDS]");
  process.exit(2);
}

const expected = new Map(); // node and topic -> run and number that come next

const plain = (key, value) =>
  value instanceof Uint8Array ? Buffer.from(value).toString("hex") : value;

/* The events of a message. JetStream delivers again what was not acknowledged in time, so the rule of
 * the wire contract decides: next = seq + lost + number of events. */
function take(message) {
  const [, node, ...rest] = message.subject.split(".");
  const topic = rest.join(".");
  const body = decode(message.data);
  if (body.seq === undefined) return; // bridge.status, bridge.gap.TOPIC and the like
  const { run, seq, lost = 0, events } = body;
  const known = expected.get(`${node} ${topic}`) ?? { run: 0, next: 0 };
  if (run < known.run || (run === known.run && seq < known.next)) return; // a repetition
  if (run === known.run && seq > known.next)
    console.error(`${node} ${topic}: ${known.next} to ${seq - 1} are not in the stream`);
  if (lost) console.error(`${node} ${topic}: ${seq} to ${seq + lost - 1} were lost in the kernel`);
  events.forEach((event, i) =>
    process.stdout.write(JSON.stringify({ node, topic, seq: seq + lost + i, ...event }, plain) + "\n"));
  expected.set(`${node} ${topic}`, { run, next: seq + lost + events.length });
}

const connection = await connect({ servers: url.split(","), maxReconnectAttempts: -1 });
const manager = await jetstreamManager(connection);
await manager.consumers.add(stream, {
  durable_name: name, ack_policy: AckPolicy.Explicit, filter_subject: subject, max_ack_pending: 10000,
});
const consumer = await jetstream(connection).consumers.get(stream, name);
const messages = await consumer.consume();
const idle = Number(values.idle) * 1000;
let timer;
const rest = () => {
  clearTimeout(timer);
  if (idle) timer = setTimeout(() => messages.stop(), idle);
};
rest();
for await (const message of messages) {
  take(message);
  message.ack(); // only now: what is printed is not lost when this is killed
  rest();
}
await connection.drain();
