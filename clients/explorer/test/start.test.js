// Started by somebody who has not fetched the packages.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

test("without its packages it says how to get them", () => {
  const copy = mkdtempSync(join(tmpdir(), "explorer-"));
  try {
    for (const name of ["server.js", "src", "package.json"])
      cpSync(fileURLToPath(new URL(`../${name}`, import.meta.url)), join(copy, name), { recursive: true });
    for (const args of [[], ["--help"]]) {
      const { status, stderr } = spawnSync(process.execPath, [join(copy, "server.js"), ...args], { encoding: "utf8" });
      assert.equal(status, 1);
      assert.match(stderr, /^coretap-explorer: Cannot find package '.*'; `make deps-js` fetches what it needs\n$/);
    }
  } finally {
    rmSync(copy, { recursive: true });
  }
});
