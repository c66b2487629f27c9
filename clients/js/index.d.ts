/// <reference types="node" />
import { EventEmitter } from "node:events";
import type { Topics } from "./catalogue.js";
export * from "./catalogue.js";

/** tcp://127.0.0.1:28370 */
export const DEFAULT_ADDRESS: string;

/** Something the node did. Bytes are views of the message: whoever keeps them for long makes a copy, or keeps
 * their hex. */
export type EventOf<Topic extends string, Fields> = Readonly<Fields> & EventBase<Topic, Fields>;

interface EventBase<Topic extends string, Fields> {
  readonly kind: "event";
  readonly topic: Topic;
  /** label of the node */
  readonly node: string;
  /** names an unbroken numbering: microseconds since the epoch at its beginning */
  readonly run: number;
  /** number of the firing in this topic and run, from 1 */
  readonly seq: number;
  /** position in the socket's order, from 1 */
  readonly n: number;
  /** the traced process */
  readonly pid: number;
  /** Unix time in microseconds at the firing */
  readonly time_us: number;
  /** the same, in milliseconds */
  readonly time: Date;
  /** by name, in the order of the wire; fields of later versions and of own tracepoints too */
  readonly fields: Fields & { readonly [name: string]: unknown };
  /** One flat object: topic, node, run, seq, n, pid, time_us, then the fields; bytes as lowercase hex, nil
   * as null. */
  json(): string;
}

/** Any event of the catalogue; `topic` tells which. Its fields are properties too: event.txid. */
export type KnownEvent<Int = number> = Topics<Int>[keyof Topics<Int>];

export interface Conflicts<Int = number> {
  txids: (Buffer | null)[];
  fees: (Int | null)[];
  vsizes: (Int | null)[];
  entry_times: (Int | null)[];
  /** evictions told before each */
  after: (Int | null)[];
}

/** The bridge's own account, once a second; only for those who name bridge.status. */
export interface Status {
  readonly kind: "status";
  readonly socket: Socket;
  readonly topic: string;
  readonly node: string;
  readonly run: number;
  readonly n: number;
  readonly time_us: number;
  readonly fields: { readonly [name: string]: unknown };
  json(): string;
}

export type Socket = "low" | "high";

interface NoticeOf<Kind extends string> {
  readonly kind: Kind;
  readonly socket: Socket;
  /** how many firings a gap or loss is about */
  readonly count: number;
  /** {"notice": kind, ...} */
  json(): string;
  toString(): string;
}

interface Range {
  readonly topic: string;
  readonly node: string;
  readonly run: number;
  /** numbers of the firings, both included */
  readonly first: number;
  readonly last: number;
}

/** Firings that did not arrive, and replay does not have them: gone. */
export type Gap = NoticeOf<"gap"> & Range;
/** Firings that coretapd itself could not get: the kernel's ring was full. */
export type Lost = NoticeOf<"lost"> & Range;
/** The numbering began anew: what happened between old_run and run is unknown. All that could be had of the
 * old run came before this. Each socket tells its own. */
export type NewRun = NoticeOf<"new_run"> & { readonly node: string; readonly run: number; readonly old_run: number };
/** A message of a run that has ended was dropped; told once for each. */
export type OldRun = NoticeOf<"old_run"> & { readonly node: string; readonly run: number; readonly old_run: number };
/** Nothing came for three seconds. Without run there never was anything. Reconnecting goes on by itself. */
export type Stale = NoticeOf<"stale"> & { readonly node?: string; readonly run?: number };
/** Messages come again after stale or stopping. */
export type Alive = NoticeOf<"alive">;
/** coretapd ended in good order. */
export type Stopping = NoticeOf<"stopping"> & { readonly topic: string; readonly node: string; readonly run: number; readonly time_us: number };
/** A message that breaks the wire contract was dropped; what it held is fetched, or told as a gap, later. */
export type Malformed = NoticeOf<"malformed"> & { readonly topic?: string; readonly reason: string };

/** What `since` asked for could not be had: the stream begins with what comes next. */
export type NoReplay = NoticeOf<"no_replay"> & { readonly node: string; readonly reason: string };

export type StreamNotice = Gap | Lost | NewRun | OldRun | Stale | Alive | Stopping | Malformed | NoReplay;
export type Item<Int = number> = KnownEvent<Int> | Status | StreamNotice;

export interface Options {
  /** tcp://HOST:PORT (PORT is the base port) or ipc:///run/coretap/NAME */
  address?: string;
  /** a file that keeps the place, so that a later call goes on there; the Python client's is the same */
  position?: string;
  /** without a position, where to begin: "10m", "oldest", a Date, Unix seconds; else at the present */
  since?: string | number | Date;
  /** bound in bytes, for each socket, of messages that wait here; default 256 MiB, 0: none. The publisher's
   * bound is next, and what does not fit there is fetched from replay. */
  memory?: number;
  /** false never asks for what is missing: gaps are told at once */
  replay?: boolean;
  /** true: the integers in fields are BigInt, all of them. false: number, all of them, and a message with one
   * that a number cannot hold exactly is malformed; none is unless the node itself is corrupt. */
  bigint?: boolean;
  /** files, as `coretap keygen` writes them: coretapd's public key, and one's own secret one; for a coretapd
   * that demands keys over tcp */
  curveServer?: string;
  curveSecret?: string;
}

export class Subscriber<Int = number> implements AsyncIterable<Item<Int>> {
  constructor(topics: string[], options?: Options);
  /** The next event or notice; null when nothing came within timeout milliseconds, or after close(). Asking
   * for the next one says that the one before is done: that is when a position is written. */
  next(timeout?: number): Promise<Item<Int> | null>;
  /** Events so far that replay gave: those from `since` or a position on, and those that did not arrive. */
  readonly replayed: number;
  /** The next item at hand, without waiting. */
  take(): Item<Int> | null;
  /** Says that the item in hand is done, without asking for the next one. */
  commit(): void;
  close(): void;
  /** Leaving the loop closes the subscriber; the item in hand counts as not done unless commit() was called. */
  [Symbol.asyncIterator](): AsyncIterator<Item<Int>, undefined>;
}

/** topics: "mempool.removed", "mempool." for all that begin so, none for everything. */
export function subscribe(...topics: string[]): Subscriber;
export function subscribe(...topicsAndOptions: [...string[], Options & { bigint: true }]): Subscriber<bigint>;
export function subscribe(...topicsAndOptions: [...string[], Options]): Subscriber;
export function subscribe(topics: string[], options: Options & { bigint: true }): Subscriber<bigint>;
export function subscribe(topics: string[], options?: Options): Subscriber;

/** Lowercase hex of bytes: of a hash what RPC prints. Null of what could not be read. */
export function hex(bytes: Uint8Array): string;
export function hex(bytes: Uint8Array | null | undefined): string | null;
/** A value as every client of coretap prints it. */
export function toJson(value: unknown): string;

export class RPC {
  /** Either a cookie file, or user and password; these may also stand in the url. */
  constructor(options?: { url?: string; cookie?: string; user?: string; password?: string });
  call(method: string, ...parameters: unknown[]): Promise<any>;
}
export class RPCError extends Error {}

/** What is not known is null. */
export class Transaction {
  txid: string;
  vsize: number | null;
  /** satoshi */
  fee: number | null;
  /** Unix seconds, the node's */
  entry_time: number | null;
  /** when it was added, if that was seen */
  added_us: number | null;
  left_us: number | null;
  /** why it left */
  reason: string | null;
  /** of the block with which it left */
  height: number | null;
  block: string | null;
  /** id of the transaction that replaced it */
  replaced_by: string | null;
  /** or the hash of the package: never a txid */
  replaced_by_package: string | null;
  /** satoshi per vbyte */
  readonly fee_rate: number | null;
  /** seconds in the mempool, until it left */
  readonly waited: number | null;
}

export type Synced = NoticeOf<"synced">;
export type Resyncing = NoticeOf<"resyncing"> & { readonly reason: string };

export interface MempoolOptions extends Pick<Options, "address" | "since" | "memory" | "replay" | "curveServer" | "curveSecret"> {
  rpc: Pick<RPC, "call">;
  /** more topics to receive */
  topics?: string[];
  /** false fetches only the ids: quick, but what was there before has no size and fee */
  verbose?: boolean;
  /** how many transactions that left are remembered; default 100,000 */
  history?: number;
}

interface MempoolEvents {
  event: [KnownEvent];
  notice: [StreamNotice | Synced | Resyncing];
  /** undefined: closed */
  status: [Status | undefined];
}

/** An exact mirror of the node's mempool, that follows by itself. */
export class Mempool extends EventEmitter {
  constructor(options: MempoolOptions);
  /** by txid as RPC prints it */
  readonly transactions: Map<string, Transaction>;
  /** those that left, oldest first */
  readonly left: Map<string, Transaction>;
  /** of all together, as far as known */
  readonly vsize: number;
  readonly size: number;
  readonly synced: boolean;
  /** snapshots taken */
  readonly syncs: number;
  /** Events so far that replay gave. */
  readonly replayed: number;
  has(txid: string): boolean;
  /** A transaction that is in the mempool, or was there last. */
  get(txid: string): Transaction | undefined;
  /** Transactions by fee rate, satoshi per vbyte. */
  histogram(bounds?: number[]): { fee_rate: number; count: number; vsize: number }[];
  /** Resolves when the mirror is exact. */
  ready(): Promise<this>;
  /** Compares with the node. What changes while that is done is no difference. */
  verify(): Promise<{ missing: string[]; surplus: string[] }>;
  close(): void;
  on<K extends keyof MempoolEvents>(name: K, listener: (...args: MempoolEvents[K]) => void): this;
  once<K extends keyof MempoolEvents>(name: K, listener: (...args: MempoolEvents[K]) => void): this;
}

export const FEE_RATES: number[];
/** Of each topic: its class, its socket, and the types of its fields. */
export const CATALOGUE: Map<string, { make: Function; socket: Socket; fields: Record<string, string> }>;
export class WireError extends Error {}
