// The connection to the server: it comes back by itself, and begins with a snapshot each time.

const TOPICS = ["mempool", "blocks", "replacements", "peers", "health"];
const SILENCE = 10_000; // ms; health comes every second
const LONGEST = 5000; // ms between two attempts

export class Feed {
  #store;
  #socket = null;
  #wait = 250;
  #asked = new Map(); // by id: [resolve, reject]
  #id = 0;
  #watch = 0;

  constructor(store) {
    this.#store = store;
    this.#connect();
  }

  /** The answer to a request; rejects when there is no connection. */
  ask(request) {
    return new Promise((resolve, reject) => {
      if (this.#socket?.readyState !== WebSocket.OPEN) {
        reject(new Error("The explorer's server is out of reach."));
        return;
      }
      const id = ++this.#id;
      this.#asked.set(id, [resolve, reject]);
      this.#socket.send(JSON.stringify({ ...request, id }));
    });
  }

  #connect() {
    const address = new URL("api", location.href);
    address.protocol = address.protocol.replace("http", "ws");
    address.hash = "";
    const socket = new WebSocket(address);
    this.#socket = socket;
    socket.addEventListener("open", () => {
      this.#wait = 250;
      socket.send(JSON.stringify({ op: "subscribe", topics: TOPICS }));
    });
    socket.addEventListener("message", ({ data }) => {
      this.#listen(socket);
      this.#take(JSON.parse(data));
    });
    socket.addEventListener("close", () => this.#closed(socket));
    this.#listen(socket);
  }

  #listen(socket) {
    if (socket !== this.#socket) return;
    clearTimeout(this.#watch);
    // A dead peer answers no farewell either: nobody waits for it.
    this.#watch = setTimeout(() => {
      socket.close();
      this.#closed(socket);
    }, SILENCE);
  }

  #closed(socket) {
    if (socket !== this.#socket) return;
    this.#socket = null;
    clearTimeout(this.#watch);
    this.#store.disconnected();
    for (const [, reject] of this.#asked.values()) reject(new Error("The connection was lost."));
    this.#asked.clear();
    setTimeout(() => this.#connect(), this.#wait * (0.75 + Math.random() / 2));
    this.#wait = Math.min(LONGEST, 2 * this.#wait);
  }

  #take(message) {
    if (message.type === "snapshot" || message.type === "delta") this.#store.apply(message);
    if (message.type !== "answer" && message.type !== "error") return;
    const [resolve, reject] = this.#asked.get(message.id) ?? [];
    this.#asked.delete(message.id);
    if (message.type === "answer") resolve?.(message);
    else reject?.(new Error(message.error));
  }
}
