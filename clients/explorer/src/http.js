// The page's files, and who may connect.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { STATUS_CODES, createServer } from "node:http";
import { extname } from "node:path";

const PAGE = new URL("../page/", import.meta.url);
const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
  ".svg": "image/svg+xml" };

const HEADERS = {
  // Nothing but the page's own files; and no text ever becomes markup.
  "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
  "permissions-policy": "camera=(), geolocation=(), microphone=()",
  "referrer-policy": "no-referrer",
  "x-content-type-options": "nosniff",
  "x-frame-options": "DENY",
};

/** All that is ever served, by path: no request becomes the name of a file. */
function readPage() {
  const files = new Map();
  for (const name of readdirSync(PAGE)) {
    const body = readFileSync(new URL(name, PAGE));
    const etag = `"${createHash("sha256").update(body).digest("base64url").slice(0, 22)}"`;
    files.set(`/${name}`, { body, headers: { "content-type": TYPES[extname(name)], "cache-control": "no-cache", etag } });
  }
  files.set("/", files.get("/index.html"));
  return files;
}

const LOOPBACK = ["localhost", "127.0.0.1", "[::1]"];

/** The name in a Host header, without its port; "" when it is none. */
function hostName(host) {
  return /^(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?$/i.exec(host ?? "")?.[1].toLowerCase() ?? "";
}

/** Which names a browser may use for this server: a page of another site that has its own name point here
 * has the wrong one. Addresses are no such names. */
export function allowedHost(host, names) {
  const name = hostName(host);
  return name !== "" && (LOOPBACK.includes(name) || name.startsWith("[") || /^[\d.]+$/.test(name) || names.includes(name));
}

/** Browsers say which site a page is of; others say nothing. */
export function allowedOrigin(origin, host, origins) {
  if (origin === undefined) return true;
  return origins.includes(origin) || [`http://${host}`, `https://${host}`].includes(origin);
}

function refuse(socket, status) {
  socket.on("error", () => socket.destroy());
  socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n`);
}

/** A server of the page, that hands connections to /api over to the API. */
export function openServer(api, { hosts, origins }) {
  const files = readPage();
  const server = createServer({ maxHeaderSize: 8192, requestTimeout: 10_000, headersTimeout: 10_000, connectionsCheckingInterval: 5000 });
  server.maxConnections = 2000;
  server.on("request", (request, response) => {
    const answer = (status, headers = {}, body = undefined) =>
      response.writeHead(status, { ...HEADERS, ...headers }).end(request.method === "HEAD" ? undefined : body);
    const text = (status, words) => answer(status, { "content-type": "text/plain; charset=utf-8" }, `${words}\n`);
    if (!allowedHost(request.headers.host, hosts)) return text(421, "This name is not served here; see --allow-host.");
    if (request.method !== "GET" && request.method !== "HEAD") return text(405, "GET or HEAD.");
    const file = files.get(request.url.split("?", 1)[0]);
    if (!file) return text(404, "Not here.");
    if (request.headers["if-none-match"] === file.headers.etag) return answer(304, file.headers);
    answer(200, { ...file.headers, "content-length": file.body.length }, file.body);
  });
  server.on("upgrade", (request, socket, head) => {
    const { host, origin } = request.headers;
    if (request.url.split("?", 1)[0] !== "/api") return refuse(socket, 404);
    if (!allowedHost(host, hosts)) return refuse(socket, 421);
    if (!allowedOrigin(origin, host, origins)) return refuse(socket, 403);
    if (!api.accept(request, socket, head)) refuse(socket, 503);
  });
  server.on("clientError", (error, socket) => (socket.writable ? refuse(socket, 400) : socket.destroy()));
  return server;
}
