// With coretapd, which demands keys: what it lost is told and counted, and its restart is survived.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { BUILD, Bridge, FakeNode, cannot } from "../../js/test/bridge.js";
import { Listener, Server, until } from "./server.js";

const BURST = 20_000;

test("what the bridge lost, and its restart", { skip: cannot, timeout: 400_000 }, async () => {
  const keys = mkdtempSync(join(tmpdir(), "coretap-keys-"));
  const key = (name) => join(keys, name);
  for (const name of ["server", "explorer"]) execFileSync(`${BUILD}coretap`, ["keygen", key(name)], { stdio: "ignore" });
  copyFileSync(key("explorer.pub"), key("clients"));
  const demand = ["--curve-secret", key("server.key"), "--curve-clients", key("clients")];
  let bridge = await Bridge.start(["--ring-low", "64K", ...demand]);
  const server = await Server.start("--address", bridge.address, "--curve-server", key("server.pub"), "--curve-secret", key("explorer.key"));
  try {
    const listener = await Listener.open(server, ["health", "mempool", "blocks"]);
    const health = () => listener.messages.findLast(({ topic }) => topic === "health")?.data;
    await until(() => health()?.node, "the bridge");
    process.kill(bridge.child.pid, "SIGSTOP");
    const burst = new FakeNode("burst", BURST, "--probe", "removed", "--reason", "expiry", "--wait", "--start-delay", 300);
    const { "mempool:removed": fired } = await burst.finish();
    process.kill(bridge.child.pid, "SIGCONT");
    const column = (data) => 2 + data.reasons.indexOf("expiry");
    const [{ data }] = listener.of("snapshot", "mempool");
    const counted = () => listener.of("delta", "mempool").flatMap((message) => message.data.seconds).reduce((sum, { flow }) => sum + flow[column(data)], 0);
    await until(() => health().lost + counted() === fired, "as many lost and counted as fired");
    assert.equal(fired, BURST);
    assert.ok(health().lost > 1000 && health().gone === 0);
    assert.ok(health().notices.some(({ kind }) => kind === "resyncing"));

    await bridge.close();
    await until(() => health().silent.low, "silence");
    bridge = await Bridge.start(demand, bridge.port);
    await until(() => !health().silent.low && health().runs === 1, "the new run");
    const node = new FakeNode("blocks", 2, 50, "--wait", "--start-delay", 300);
    await node.finish();
    const told = () => listener.of("delta", "blocks").flatMap((message) => message.data.blocks).filter(({ state }) => state === "complete");
    await until(() => told().length >= 2, "its blocks");
    assert.deepEqual([...new Set(told().map(({ confirmed, conflicts, unseen }) => `${confirmed} ${conflicts} ${unseen}`))], ["50 0 0"]);
    await until(() => health().mempool.synced, "synced");
    listener.close();
    assert.equal(await server.end(), 0);
    assert.equal(server.log, "");
  } finally {
    await server.end("SIGKILL");
    await bridge.close();
    rmSync(keys, { recursive: true });
  }
});
