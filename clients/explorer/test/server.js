// A running server, and clients of its API.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { connect } from "node:net";
import { fileURLToPath } from "node:url";

import { WebSocket } from "ws";

const SERVER = fileURLToPath(new URL("../server.js", import.meta.url));

export async function until(condition, what, seconds = 90) {
  for (const end = performance.now() + 1000 * seconds; ; await new Promise((resolve) => setTimeout(resolve, 10))) {
    const value = await condition();
    if (value) return value;
    if (performance.now() > end) throw new Error(`${what}: not within ${seconds} s`);
  }
}

/** A scripted publisher's statuses, until clearInterval(). One that is still sending is left alone. */
export function beat(publisher, ms = 200) {
  return setInterval(async () => {
    try {
      for (const socket of ["low", "high"]) await publisher.status(socket);
    } catch (error) {
      if (error.code !== "EBUSY") throw error;
    }
  }, ms);
}

export class Server {
  log = "";
  out = "";

  /** Its port is any free one, unless args say --listen. */
  static async start(...args) {
    const self = new Server();
    const listen = args.includes("--listen") ? [] : ["--listen", "127.0.0.1:0"];
    self.child = spawn("node", [SERVER, ...listen, ...args.map(String)], { stdio: ["ignore", "pipe", "pipe"] });
    self.child.stderr.on("data", (data) => (self.log += data));
    self.child.stdout.on("data", (data) => (self.out += data));
    self.address = await until(() => {
      if (self.child.exitCode !== null) throw new Error(`ended: ${self.log}`);
      return /http:\S+/.exec(self.out)?.[0];
    }, "the address");
    self.port = Number(new URL(self.address).port);
    return self;
  }

  get running() {
    return this.child.exitCode === null && this.child.signalCode === null;
  }

  async end(signal = "SIGTERM") {
    if (this.running) {
      this.child.kill(signal);
      await once(this.child, "exit");
    }
    return this.child.exitCode;
  }

  /** The answer's head and body to bytes as they are: no library tidies them up. */
  async raw(text) {
    const socket = connect(this.port, "127.0.0.1");
    let [answer, over] = ["", false];
    const end = () => (over = true);
    socket.on("data", (data) => (answer += data.toString("latin1"))).on("error", () => {}).on("close", end).on("end", end);
    socket.write(text);
    const begin = performance.now();
    // What is an upgrade stays open, and has answered with its head.
    await until(() => over || (answer.includes("\r\n\r\n") && performance.now() - begin > 300), "an answer");
    socket.destroy();
    return answer;
  }

  get(path, host = `127.0.0.1:${this.port}`, more = "") {
    return this.raw(`GET ${path} HTTP/1.1\r\nHost: ${host}\r\n${more}Connection: close\r\n\r\n`);
  }
}

/** A client of the API, that keeps what it is told. */
export class Listener {
  messages = [];
  count = 0; // events

  static async open(server, topics = [], options = {}) {
    const self = new Listener();
    self.socket = new WebSocket(`ws://127.0.0.1:${server.port}/api`, options);
    self.socket.on("message", (data) => {
      self.messages.push(JSON.parse(data));
      self.count += self.messages.at(-1).events?.length ?? 0;
    });
    self.socket.on("error", () => {});
    self.closed = new Promise((resolve) => self.socket.on("close", (...how) => resolve(how)));
    await once(self.socket, "open");
    if (topics.length) self.ask({ op: "subscribe", topics });
    return self;
  }

  ask(request) {
    this.socket.send(typeof request === "string" || Buffer.isBuffer(request) ? request : JSON.stringify(request));
  }

  of(type, topic) {
    return this.messages.filter((message) => message.type === type && (topic === undefined || message.topic === topic));
  }

  get events() {
    return this.of("events").flatMap(({ events }) => events);
  }

  /** The first message for which this holds. */
  wait(condition, what) {
    return until(() => this.messages.find(condition), what);
  }

  close() {
    this.socket.terminate();
  }
}
