#!/usr/bin/env node
// coretap-explorer: a node's mempool, live in a browser.
function fail(text, code) {
  process.stderr.write(`coretap-explorer: ${text}\n`);
  process.exit(code);
}

// Whoever lacks the packages is told how to get them.
async function load(...names) {
  try {
    return Object.assign({}, ...(await Promise.all(names.map((name) => import(`./src/${name}.js`)))));
  } catch (error) {
    if (error.code !== "ERR_MODULE_NOT_FOUND") throw error;
    return fail(`${error.message.split(" imported from")[0]}; \`make deps-js\` fetches what it needs`, 1);
  }
}

async function start(options) {
  const { Api, openServer, openMirror, State } = await load("api", "http", "mirror", "state");
  const pool = openMirror(options);
  const state = new State(pool, { exact: options.rpc !== null, history: options.history });
  const api = new Api(state, options);
  pool.on("event", (event) => {
    state.event(event);
    if (state.health.caughtUp.low) api.event(event);
  });
  pool.on("notice", (notice) => state.notice(notice));
  pool.on("status", (status) => status && state.status(status));

  const { host, port } = options.listen;
  const server = openServer(api, options);
  server.on("error", (error) => fail(`--listen ${host}:${port}: ${error.code === "EADDRINUSE" ? "in use" : error.message}`, error.code === "EADDRINUSE" ? 5 : 1));
  server.listen(port, host, () => {
    const { address, family, port: bound } = server.address();
    if (!/^(127\.|::1$|::ffff:127\.)/.test(address))
      process.stderr.write(`coretap-explorer: ${address}: whoever reaches this address sees the node's transactions and peers\n`);
    process.stdout.write(`coretap-explorer: http://${family === "IPv6" ? `[${address}]` : address}:${bound}/\n`);
  });
  const stop = () => {
    pool.close();
    api.close();
    server.close();
    server.closeAllConnections();
    setTimeout(() => process.exit(0), 500).unref();
  };
  process.on("SIGINT", stop).on("SIGTERM", stop);
}

const { HELP, UsageError, readOptions } = await load("options");
try {
  const options = readOptions(process.argv.slice(2));
  if (options.help) process.stdout.write(HELP);
  else if (options.version) process.stdout.write(`${options.version}\n`);
  else await start(options);
} catch (error) {
  if (error instanceof UsageError || error instanceof TypeError) fail(error.message, 2);
  throw error;
}
