// Keys of encrypted connections, as `coretap keygen` writes them.
import { createPrivateKey, createPublicKey } from "node:crypto";
import { readFileSync } from "node:fs";

const DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
const LENGTH = 40; // of a key as text: Z85 of 32 bytes
// What stands before the 32 bytes of an X25519 secret key in PKCS#8.
const PKCS8 = Buffer.from("302e020100300506032b656e04220420", "hex");

function decode(text) {
  const bytes = Buffer.alloc(LENGTH / 5 * 4);
  for (let i = 0; i < LENGTH; i += 5) {
    let value = 0;
    for (const c of text.slice(i, i + 5)) {
      const digit = DIGITS.indexOf(c);
      if (digit < 0) throw new RangeError("no key");
      value = value * 85 + digit;
    }
    bytes.writeUInt32BE(value, i / 5 * 4);
  }
  return bytes;
}

function encode(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 4) {
    let word = "";
    for (let value = bytes.readUInt32BE(i), k = 0; k < 5; k++, value = Math.floor(value / 85)) word = DIGITS[value % 85] + word;
    text += word;
  }
  return text;
}

/** The first key in a file: the "public" or the "secret" one. Lines begin with a key, or are comments, which may say
 * that it is the other one; a key may begin with # too. */
function readKey(path, wanted) {
  const other = wanted === "secret" ? "public" : "secret";
  let lines;
  try {
    lines = readFileSync(path, "latin1").split("\n");
  } catch (error) {
    throw new TypeError(`${path}: ${error.message}`);
  }
  const at = lines.findIndex((line) => line.trim().split(/\s/)[0].length === LENGTH);
  if (lines.slice(0, at < 0 ? undefined : at).some((line) => line.startsWith(`# ${other} key of coretap`)))
    throw new TypeError(`${path}: holds a ${other} key, a ${wanted} one is wanted`);
  const key = lines[at]?.trim().split(/\s/)[0];
  if (!key) throw new TypeError(`${path}: has no key of 40 characters; \`coretap keygen\` makes one`);
  try {
    return { text: key, bytes: decode(key) };
  } catch {
    throw new TypeError(`${path}: holds something that is no key`);
  }
}

/** Options of a socket, from the files of coretapd's public key and one's own secret one; none without. */
export function curveOptions(server, secret, endpoint) {
  if (server === undefined && secret === undefined) return {};
  if (!server || !secret)
    throw new TypeError("curveServer and curveSecret belong together: coretapd's public key, and a secret one of your own");
  const serverKey = readKey(server, "public"), secretKey = readKey(secret, "secret");
  // ipc is guarded by the mode of its file instead.
  if (!endpoint.startsWith("tcp:")) return {};
  const key = createPrivateKey({ key: Buffer.concat([PKCS8, secretKey.bytes]), format: "der", type: "pkcs8" });
  return {
    curveServerKey: serverKey.text, curveSecretKey: secretKey.text,
    curvePublicKey: encode(createPublicKey(key).export({ format: "der", type: "spki" }).subarray(-32)),
  };
}
