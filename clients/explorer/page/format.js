// Numbers, times and ids as people read them.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const NONE = "–";

export const count = (n) => (Number.isFinite(n) ? whole.format(n) : NONE);

export const several = (n, thing) => `${count(n)} ${thing}${n === 1 ? "" : "s"}`;

/** Three digits that count: 0.42, 4.20, 42.0, 420 */
function short(n) {
  const size = Math.abs(n);
  return size >= 100 || n === 0 ? whole.format(n) : n.toFixed(size >= 10 ? 1 : 2);
}

function scaled(n, units, step = 1000) {
  if (!Number.isFinite(n)) return NONE;
  let i = 0;
  while (Math.abs(n) >= step && i < units.length - 1) {
    n /= step;
    i++;
  }
  return `${i ? short(n) : Number.isInteger(n) ? whole.format(n) : short(n)}\u202f${units[i]}`;
}

export const vsize = (n) => scaled(n, ["vB", "kvB", "MvB", "GvB"]);
export const bytes = (n) => scaled(n, ["B", "kB", "MB", "GB", "TB"]);
/** Of what could not be read: NaN. */
export const rateOf = ({ fee, vsize: size }) => (size ? (fee ?? NaN) / size : NaN);
export const feeRate = (n) => (Number.isFinite(n) ? short(n) : NONE);
export const perSecond = (n) => (Number.isFinite(n) ? `${n && n < 10 ? n.toFixed(1) : whole.format(n)}/s` : NONE);

const bitcoin = (digits) => new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const [fine, coarse] = [bitcoin(5), bitcoin(3)];

/** Satoshi, or bitcoin where there are many. */
export function amount(satoshi) {
  if (!Number.isFinite(satoshi)) return NONE;
  return Math.abs(satoshi) < 1e5 ? `${whole.format(satoshi)}\u202fsat` : `${(satoshi < 1e7 ? fine : coarse).format(satoshi / 1e8)}\u202fBTC`;
}

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return NONE;
  const size = Math.max(0, seconds);
  if (size < 1) return `${Math.round(1000 * size)}\u202fms`;
  if (size < 60) return `${Math.floor(size)}\u202fs`;
  if (size < 600) return `${Math.floor(size / 60)}\u202fmin ${Math.floor(size % 60)}\u202fs`;
  if (size < 3600) return `${Math.floor(size / 60)}\u202fmin`;
  if (size < 86400) return `${Math.floor(size / 3600)}\u202fh ${Math.floor((size % 3600) / 60)}\u202fmin`;
  return `${Math.floor(size / 86400)}\u202fd ${Math.floor((size % 86400) / 3600)}\u202fh`;
}

export const ago = (seconds) => (Number.isFinite(seconds) ? (seconds < 1 ? "just now" : `${duration(seconds)} ago`) : NONE);

/** The beginning and end of an id. */
export const abbreviated = (id, digits = 8) => (id ? `${id.slice(0, digits)}…${id.slice(-digits / 2)}` : "unreadable");

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-CA", { year: "numeric", month: "2-digit", day: "2-digit" });

export const timeOf = (seconds) => clock.format(1000 * seconds);
export const dateOf = (us) => `${day.format(us / 1000)} ${clock.format(us / 1000)}.${`${Math.floor((us / 1000) % 1000)}`.padStart(3, "0")}`;

/** What a state of a transaction is called. */
export const STATES = { mempool: "in the mempool", confirmed: "confirmed", conflicted: "conflicted", replaced: "replaced",
  expired: "expired", dropped: "dropped, mempool full", reorged: "invalid after a reorganisation", rejected: "rejected", gone: "left" };

/** Why it left, as a state. */
export const STATE_OF_REASON = { block: "confirmed", conflict: "conflicted", replaced: "replaced", expiry: "expired",
  sizelimit: "dropped", reorg: "reorged" };
