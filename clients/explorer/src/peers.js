// Who the node is connected with, and which messages pass.

const MAX_PEERS = 1000;
const MAX_TYPES = 40; // kinds of messages in a slot; a peer may invent them
const MAX_GONE = 20;
const SLOT = 10; // seconds
const FORGOTTEN = 1500; // seconds: a peer that says nothing for so long left without our notice; nodes ping each other
const SLOTS = 6; // the last minute
export const SECONDS = 300;
const OTHER = "(other)";

const cut = (text, length) => (text && text.length > length ? `${text.slice(0, length)}…` : text ?? null);

class Tally {
  in = 0;
  in_bytes = 0;
  out = 0;
  out_bytes = 0;

  add(inbound, size) {
    if (inbound) {
      this.in++;
      this.in_bytes += size;
    } else {
      this.out++;
      this.out_bytes += size;
    }
  }
}

export class Peers {
  seconds = []; // { t, in, in_bytes, out, out_bytes }
  gone = []; // connections that ended, latest first

  #peers = new Map(); // by id
  #changed = new Set();
  #closed = new Set();
  #slots = []; // { t, types: Map of Tally }
  #second = new Tally();
  #now = 0;
  #fresh = 0; // seconds closed since changes() was asked
  #goneChanged = false;

  /** An event of net.*. */
  apply(event) {
    switch (event.topic) {
      case "net.inbound_message": return this.#message(event, true);
      case "net.outbound_message": return this.#message(event, false);
      case "net.inbound_connection":
      case "net.outbound_connection": return this.#connect(event);
      case "net.evicted_inbound_connection": return this.#note(event, "evicted to make room");
      case "net.misbehaving_connection": return this.#note(event, `misbehaving: ${cut(event.reason, 200) || "no reason given"}`);
      case "net.closed_connection": return this.#close(event);
    }
  }

  /** The node has ended: its connections with it. */
  clear() {
    for (const id of this.#peers.keys()) this.#closed.add(id);
    this.#peers.clear();
    this.#changed.clear();
  }

  /** Ends every second before this one. */
  advance(second) {
    if (!this.#now || Math.abs(second - this.#now) > SECONDS) {
      this.seconds = this.seconds.filter(({ t }) => t < second); // the clock may have been set back
      this.#slots = [];
      this.#now = second;
      this.#second = new Tally();
      return;
    }
    if (Math.floor(second / 60) > Math.floor(this.#now / 60)) this.#forgetSilent(second);
    while (this.#now < second) {
      this.seconds.push({ t: this.#now++, ...this.#second });
      if (this.seconds.length > SECONDS) this.seconds.shift();
      this.#fresh++;
      this.#second = new Tally();
    }
  }

  /** Messages of the last minute by type, the most frequent first. */
  types() {
    const all = new Map();
    for (const { t, types } of this.#slots) {
      if (t <= this.#now - SLOT * SLOTS) continue;
      for (const [type, tally] of types) {
        const total = all.get(type) ?? { type, in: 0, in_bytes: 0, out: 0, out_bytes: 0 };
        for (const name of Object.keys(tally)) total[name] += tally[name];
        all.set(type, total);
      }
    }
    return [...all.values()].sort((a, b) => b.in + b.out - a.in - a.out || (a.type < b.type ? -1 : 1)).slice(0, MAX_TYPES);
  }

  all() {
    return { peers: [...this.#peers.values()], seconds: this.seconds, types: this.types(), gone: this.gone };
  }

  /** Once a second there is something to tell, and not more often. */
  changes() {
    if (!this.#fresh) return null;
    const peers = [...this.#changed].map((id) => this.#peers.get(id));
    const closed = [...this.#closed].filter((id) => !this.#peers.has(id));
    const seconds = this.seconds.slice(-this.#fresh);
    const gone = this.#goneChanged ? this.gone : undefined;
    this.#changed.clear();
    this.#closed.clear();
    this.#fresh = 0;
    this.#goneChanged = false;
    return { peers, closed, seconds, types: this.types(), gone };
  }

  #peer({ peer_id, addr, connection_type, network, time_us }) {
    const known = (peer_id ?? null) !== null; // one that could not be read is nobody's
    let peer = this.#peers.get(peer_id);
    if (!peer) {
      peer = { id: peer_id, addr: null, type: null, network: null, since_us: null, seen_us: time_us, note: null, ...new Tally() };
      if (known) this.#peers.set(peer_id, peer);
      if (this.#peers.size > MAX_PEERS) this.#forget(this.#peers.keys().next().value);
    }
    peer.addr ??= cut(addr, 120);
    peer.type ??= cut(connection_type, 40);
    peer.network ??= cut(network, 20);
    if (known) this.#changed.add(peer_id);
    return peer;
  }

  #connect(event) {
    this.#forget(event.peer_id);
    this.#peer(event).since_us = event.time_us;
  }

  #note(event, text) {
    this.#peer(event).note = text;
  }

  #message(event, inbound) {
    const size = event.size ?? 0;
    this.#second.add(inbound, size);
    this.#slot().add(inbound, size, event.msg_type);
    const peer = this.#peer(event);
    peer.seen_us = event.time_us;
    if (inbound) {
      peer.in++;
      peer.in_bytes += size;
    } else {
      peer.out++;
      peer.out_bytes += size;
    }
  }

  #slot() {
    const t = this.#now - (this.#now % SLOT);
    let slot = this.#slots.at(-1);
    if (slot?.t !== t) {
      slot = { t, types: new Map(), add: null };
      slot.add = (inbound, size, type) => {
        const known = slot.types.has(cut(type, 24)) || slot.types.size < MAX_TYPES;
        const name = known ? cut(type, 24) ?? "?" : OTHER;
        if (!slot.types.has(name)) slot.types.set(name, new Tally());
        slot.types.get(name).add(inbound, size);
      };
      this.#slots.push(slot);
      if (this.#slots.length > SLOTS + 1) this.#slots.shift();
    }
    return slot;
  }

  #close(event) {
    const { id, addr, type, network, note } = this.#peer(event);
    const established = event.established ?? null;
    this.gone.unshift({ id, addr, type, network, note, established, t: event.time_us });
    if (this.gone.length > MAX_GONE) this.gone.pop();
    this.#goneChanged = true;
    this.#forget(event.peer_id);
  }

  #forgetSilent(second) {
    for (const { id, in: received, out: sent, seen_us } of this.#peers.values())
      if (received + sent && seen_us / 1e6 < second - FORGOTTEN) this.#forget(id);
  }

  #forget(id) {
    if (!this.#peers.delete(id)) return;
    this.#changed.delete(id);
    this.#closed.add(id);
  }
}
