"""A Bitcoin Core node on regtest, transactions and blocks made by hand, and a raw P2P peer.

Only the standard library, and nothing of Bitcoin Core's test framework. What these tests compare
coretap's events with comes from here: from RPC, and from bytes that this file made itself.
"""
import base64
import collections
import hashlib
import http.client
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import wait_until  # noqa: E402

COIN = 100_000_000


def bitcoind():
    """Path of the node under test, from the environment; skips the test without it."""
    path = os.environ.get("BITCOIND")
    if not path:
        raise unittest.SkipTest("BITCOIND is not set")
    if not os.access(path, os.X_OK):
        raise AssertionError(f"BITCOIND={path}: no such program")
    return path


def version():
    """Its major version."""
    out = subprocess.run([bitcoind(), "-version"], capture_output=True, text=True).stdout
    return int(re.search(r"version v(\d+)", out)[1])


def need_tracepoints(*names):
    """Skips a test of what this binary does not tell."""
    out = subprocess.run(["readelf", "-n", bitcoind()], capture_output=True, text=True).stdout
    found = {".".join(pair) for pair in re.findall(r"Provider: (\S+)\s+Name: (\S+)", out)}
    missing = set(names) - found
    if missing:
        raise unittest.SkipTest(f"v{version()} lacks {', '.join(sorted(missing))}")


def need_version(first, what):
    if version() < first:
        raise unittest.SkipTest(f"v{version()}: {what}")


def satoshi(amount):
    """From RPC's decimal text (numbers are parsed as text, so nothing is rounded)."""
    whole, _, fraction = str(amount).lstrip("-").partition(".")
    value = int(whole) * COIN + int(fraction.ljust(8, "0"))
    return -value if str(amount).startswith("-") else value


# ---- transactions and blocks ----


def sha256(data):
    return hashlib.sha256(data).digest()


def hash256(data):
    return sha256(sha256(data))


def compact(n):
    if n < 0xfd:
        return struct.pack("<B", n)
    if n <= 0xffff:
        return b"\xfd" + struct.pack("<H", n)
    return b"\xfe" + struct.pack("<I", n)


def sized(data):
    return compact(len(data)) + data


WITNESS_SCRIPT = b"\x51"  # OP_TRUE: anyone can spend, yet standard inside P2WSH
SCRIPT = b"\x00\x20" + sha256(WITNESS_SCRIPT)
WITNESS = (WITNESS_SCRIPT,)

Coin = collections.namedtuple("Coin", "txid vout value")


class Tx:
    """Inputs are (txid, vout, sequence, witness stack), outputs (value, script)."""

    def __init__(self, inputs, outputs, version=2, lock_time=0, script_sig=b""):
        self.inputs, self.outputs = inputs, outputs
        self.version, self.lock_time, self.script_sig = version, lock_time, script_sig
        self.raw = self.serialize(any(witness for *_, witness in inputs))
        stripped = self.serialize(False)
        self.txid = hash256(stripped)[::-1].hex()
        self.wtxid = hash256(self.raw)[::-1].hex()
        self.weight = 3 * len(stripped) + len(self.raw)
        self.vsize = (self.weight + 3) // 4
        self.hex = self.raw.hex()

    def serialize(self, with_witness):
        out = struct.pack("<i", self.version)
        out += b"\x00\x01" if with_witness else b""
        out += compact(len(self.inputs))
        for txid, vout, sequence, _ in self.inputs:
            out += bytes.fromhex(txid)[::-1] + struct.pack("<I", vout)
            out += sized(self.script_sig) + struct.pack("<I", sequence)
        out += compact(len(self.outputs))
        for value, script in self.outputs:
            out += struct.pack("<q", value) + sized(script)
        if with_witness:
            for *_, witness in self.inputs:
                out += compact(len(witness)) + b"".join(sized(item) for item in witness)
        return out + struct.pack("<I", self.lock_time)

    @property
    def coins(self):
        return [Coin(self.txid, i, value) for i, (value, script) in enumerate(self.outputs)
                if script == SCRIPT]


def spend(coins, fee, outputs=1, padding=0, sequence=0xfffffffd, version=2, script=SCRIPT):
    """A transaction from coins of ours to that many equal ones; padding: bytes of an OP_RETURN."""
    coins = [coins] if isinstance(coins, Coin) else list(coins)
    total = sum(c.value for c in coins) - fee
    assert total >= outputs * 330, "outputs would be dust"
    out = [(total // outputs, script)] * outputs
    out[0] = (total - total // outputs * (outputs - 1), script)
    if padding:
        out.append((0, b"\x6a\x4e" + struct.pack("<I", padding) + bytes(padding)))
    return Tx([(c.txid, c.vout, sequence, WITNESS) for c in coins], out, version)


def package_hash(txs):
    """SHA-256 over the wtxids, sorted as RPC prints them; Bitcoin Core, GetPackageHash()."""
    ids = sorted(tx.wtxid for tx in txs)
    return sha256(b"".join(bytes.fromhex(i)[::-1] for i in ids))[::-1].hex()


def merkle_root(hashes):
    while len(hashes) > 1:
        hashes = hashes + hashes[-1:] * (len(hashes) % 2)
        hashes = [hash256(a + b) for a, b in zip(hashes[::2], hashes[1::2])]
    return hashes[0]


class Block:
    """A mined regtest block on top of (hash, height), whatever its transactions are worth."""
    extra = itertools.count()

    def __init__(self, previous, height, block_time, txs=()):
        self.height, self.time, self.txs = height, block_time, [self.coinbase(height, txs), *txs]
        root = merkle_root([bytes.fromhex(tx.txid)[::-1] for tx in self.txs])
        head = struct.pack("<i", 0x20000000) + bytes.fromhex(previous)[::-1] + root
        head += struct.pack("<II", block_time, 0x207fffff)
        nonce = 0
        while hash256(head + struct.pack("<I", nonce))[31] > 0x7f:
            nonce += 1
        self.header = head + struct.pack("<I", nonce)
        self.hash = hash256(self.header)[::-1].hex()
        self.hex = (self.header + compact(len(self.txs)) + b"".join(t.raw for t in self.txs)).hex()
        self.txids = [tx.txid for tx in self.txs]

    def coinbase(self, height, txs):
        number = height.to_bytes((height.bit_length() + 8) // 8, "little")
        unique = struct.pack("<I", next(self.extra))
        root = merkle_root([bytes(32)] + [bytes.fromhex(tx.wtxid)[::-1] for tx in txs])
        commitment = b"\x6a\x24\xaa\x21\xa9\xed" + hash256(root + bytes(32))
        return Tx([("00" * 32, 0xffffffff, 0xffffffff, (bytes(32),))],
                  [(50 * COIN >> height // 150, SCRIPT), (0, commitment)],
                  script_sig=(sized(number) if height > 16 else bytes([0x50 + height])) +
                  sized(unique))


# ---- the node ----


class RPCError(Exception):
    def __init__(self, error):
        super().__init__(f"{error['message']} ({error['code']})")
        self.code, self.message = error["code"], error["message"]


class RPC:
    """node.rpc.getblock(hash, 2); amounts come as text, see satoshi()."""

    def __init__(self, node, path="/"):
        self.node, self.path = node, path

    def post(self, body, timeout=120):
        with open(os.path.join(self.node.chain_directory, ".cookie")) as cookie:
            secret = base64.b64encode(cookie.read().encode()).decode()
        connection = http.client.HTTPConnection("127.0.0.1", self.node.rpc_port, timeout=timeout)
        try:
            connection.request("POST", self.path, json.dumps(body),
                               {"Authorization": f"Basic {secret}"})
            return json.loads(connection.getresponse().read(), parse_float=str)
        finally:
            connection.close()

    def call(self, method, *args, **named):
        answer = self.post({"id": 0, "method": method, "params": named or list(args)})
        if answer["error"]:
            raise RPCError(answer["error"])
        return answer["result"]

    def batch(self, method, calls, strict=True):
        """One request for many calls; calls is a list of argument lists. Not strict: an error is
        returned in place of a result."""
        results = []
        for at in range(0, len(calls), 500):
            answers = self.post([{"id": i, "method": method, "params": list(args)}
                                 for i, args in enumerate(calls[at:at + 500])])
            for answer in sorted(answers, key=lambda a: a["id"]):
                error = RPCError(answer["error"]) if answer["error"] else None
                if error and strict:
                    raise error
                results.append(error or answer["result"])
        return results

    def __getattr__(self, method):
        return lambda *args, **named: self.call(method, *args, **named)


def new_script(wallet):
    """The script of a new address."""
    return bytes.fromhex(wallet.getaddressinfo(wallet.getnewaddress())["scriptPubKey"])


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Node:
    """A node of its own in a temporary directory, on loopback only."""

    def __init__(self, *args, binary=None, start=True):
        self.binary = binary or bitcoind()
        self.args = args
        self.datadir = tempfile.mkdtemp(prefix="coretap-node-")
        self.chain_directory = os.path.join(self.datadir, "regtest")
        self.port, self.rpc_port = free_ports(2)
        self.rpc = RPC(self)
        self.process, self.pid = None, None
        self.ready = []  # matured coins of ours that nothing has spent yet
        if start:
            try:
                self.start()
            except BaseException:
                self.close()
                raise

    def command(self, *more):
        return [self.binary, "-regtest", f"-datadir={self.datadir}", f"-bind=127.0.0.1:{self.port}",
                "-rpcbind=127.0.0.1", "-rpcallowip=127.0.0.1", f"-rpcport={self.rpc_port}",
                "-natpmp=0", "-dnsseed=0", "-fixedseeds=0", "-discover=0", "-listenonion=0",
                "-connect=0", "-listen=1", "-server=1", "-printtoconsole=0", "-fallbackfee=0.0001",
                # On regtest by default after every transaction, which takes minutes for thousands.
                "-checkmempool=0", "-checkblockindex=0",
                # The same policy in every version.
                "-minrelaytxfee=0.000001", "-incrementalrelayfee=0.000001",
                "-blockmintxfee=0.00000001", "-datacarriersize=100000",
                "-debug=bench", "-debug=mempool", "-debug=net", "-debug=coindb", "-logtimemicros",
                *self.args, *more]

    def start(self, *more):
        """Starts it in the foreground and waits until it answers; its pid is new."""
        self.process = subprocess.Popen(self.command(*more), stderr=subprocess.DEVNULL)
        self.pid = self.process.pid
        self.wait_answer()

    def start_daemon(self, how="-daemonwait"):
        """Starts it with -daemon or -daemonwait: it goes on in a child of the process started."""
        subprocess.run(self.command(how), check=True, stdout=subprocess.DEVNULL, timeout=240)
        self.process = None
        self.wait_answer()
        with open(os.path.join(self.chain_directory, "bitcoind.pid")) as file:
            self.pid = int(file.read())

    def wait_answer(self):
        def answers():
            if self.process and self.process.poll() is not None:
                raise AssertionError(f"the node ended: {self.log()[-2000:]}")
            try:
                return self.rpc.getblockchaininfo()
            except (OSError, RPCError, ValueError, http.client.HTTPException):
                return None
        wait_until(answers, 60, "the node's answer")

    def gone(self):
        if self.process:
            return self.process.poll() is not None
        return not os.path.exists(f"/proc/{self.pid}/exe")

    def stop(self):
        """An orderly end."""
        self.rpc.stop()
        wait_until(self.gone, 60, "the node's end")
        code = self.process.returncode if self.process else 0
        self.process = None
        if code:
            raise AssertionError(f"the node ended with {code}: {self.log()[-2000:]}")

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        wait_until(self.gone, 10, "the node's death")
        self.process = None

    def log(self):
        with open(os.path.join(self.chain_directory, "debug.log"), errors="replace") as file:
            return file.read()

    def close(self):
        if self.pid and not self.gone():
            self.kill()
        shutil.rmtree(self.datadir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            try:
                print(f"--- {self.binary}:\n{self.log()[-3000:]}", file=sys.stderr)
            except OSError:
                pass
        self.close()

    # ---- the chain ----

    def mine(self, count=1, script=SCRIPT):
        """Blocks with what the mempool holds; returns their hashes."""
        descriptor = f"raw({script.hex()})"
        return self.rpc.generatetodescriptor(
            count, self.rpc.getdescriptorinfo(descriptor)["descriptor"])

    def mine_exactly(self, txs=(), submit=True):
        """One block with exactly these transactions (ids of the mempool, or raw ones), by RPC."""
        descriptor = self.rpc.getdescriptorinfo(f"raw({SCRIPT.hex()})")["descriptor"]
        return self.rpc.generateblock(descriptor, list(txs), submit)

    def block_on(self, parent=None, txs=()):
        """A block made by hand on a Block, or on the tip; not submitted."""
        if parent:
            return Block(parent.hash, parent.height + 1, parent.time + 1, txs)
        tip = self.rpc.getblockchaininfo()
        block_time = max(int(time.time()), tip["mediantime"] + 1)
        return Block(tip["bestblockhash"], tip["blocks"] + 1, block_time, txs)

    def submit(self, block):
        """None, or why the block was not taken."""
        return self.rpc.submitblock(block.hex)

    def coinbase(self, height):
        """The coin that the block at this height made."""
        tx = self.rpc.getblock(self.rpc.getblockhash(height), 2)["tx"][0]
        return Coin(tx["txid"], 0, satoshi(tx["vout"][0]["value"]))

    def make_coins(self, count, value=100_000):
        """That many confirmed coins of ours, of equal value."""
        per_tx = 2000
        needed = -(-count // per_tx)
        height = self.rpc.getblockcount()
        if len(self.ready) < needed:
            self.mine(needed + 100)
            self.ready += [self.coinbase(height + i + 1) for i in range(needed)]
        coins = []
        for at in range(0, count, per_tx):
            n = min(per_tx, count - at)
            base = self.ready.pop()
            outputs = [(value, SCRIPT)] * n + [(base.value - n * value - 30_000, SCRIPT)]
            tx = Tx([(base.txid, base.vout, 0xffffffff, WITNESS)], outputs)
            self.send(tx)
            coins += tx.coins[:n]
            self.ready.insert(0, tx.coins[n])
        self.mine()
        return coins

    # ---- the mempool ----

    def send(self, tx):
        return self.rpc.sendrawtransaction(tx.hex, 0)

    def send_all(self, txs):
        return self.rpc.batch("sendrawtransaction", [(tx.hex, 0) for tx in txs])

    def mempool(self):
        return set(self.rpc.getrawmempool())

    def wallet(self, name="w"):
        """A new wallet; returns its RPC."""
        self.rpc.createwallet(wallet_name=name)
        return RPC(self, f"/wallet/{urllib.parse.quote(name)}")


# ---- a peer ----


MAGIC = bytes.fromhex("fabfb5da")


class Peer:
    """One P2P connection (version 1 transport) that writes what it is told to and keeps account of
    both directions: .sent and .received are lists of (type, payload)."""

    def __init__(self, sock):
        self.sock = sock
        self.sock.settimeout(20)
        self.buffer = b""
        self.sent, self.received = [], []

    @classmethod
    def connect(cls, node, handshake=True):
        """Connects to the node: inbound for it."""
        peer = cls(socket.create_connection(("127.0.0.1", node.port), timeout=80))
        # The node calls the peer by the address it comes from.
        peer.address = "{}:{}".format(*peer.sock.getsockname())
        if handshake:
            peer.handshake()
        return peer

    @classmethod
    def accept(cls, node, connection_type="outbound-full-relay", handshake=True):
        """Has the node connect to us: outbound for it."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = "{}:{}".format(*listener.getsockname())
            listener.settimeout(20)
            # Without the encrypted transport, which v26 brought.
            plain = [False] if version() >= 26 else []
            node.rpc.addconnection(address, connection_type, *plain)
            peer = cls(listener.accept()[0])
        peer.address = address
        if handshake:
            peer.handshake(first=False)
        return peer

    def send(self, kind, payload=b"", checksum=None):
        kind = kind if isinstance(kind, bytes) else kind.encode()
        checksum = hash256(payload)[:4] if checksum is None else checksum
        self.sock.sendall(MAGIC + kind.ljust(12, b"\0") + struct.pack("<I", len(payload)) +
                          checksum + payload)
        self.sent.append((kind.decode("latin-1"), payload))

    def take(self, size):
        while len(self.buffer) < size:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError("the node closed the connection")
            self.buffer += data
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def receive(self):
        head = self.take(24)
        assert head[:4] == MAGIC
        kind = head[4:16].rstrip(b"\0").decode()
        payload = self.take(struct.unpack("<I", head[16:20])[0])
        self.received.append((kind, payload))
        if kind == "ping":
            self.send("pong", payload)
        return kind, payload

    def wait_for(self, wanted):
        while True:
            kind, payload = self.receive()
            if kind == wanted:
                return payload

    def wait_closed(self):
        try:
            while True:
                self.receive()
        except (EOFError, ConnectionError):
            pass

    def handshake(self, first=True):
        version = struct.pack("<iQq", 70016, 0x409, int(time.time())) + bytes(26) + bytes(26)
        version += struct.pack("<Q", random.getrandbits(64)) + sized(b"/coretap:test/")
        version += struct.pack("<i?", 0, True)
        if first:
            self.send("version", version)
            self.wait_for("version")
        else:
            self.wait_for("version")
            self.send("version", version)
        self.wait_for("verack")
        self.send("verack")
        self.ping()

    def ping(self):
        """Everything sent before was processed when this returns."""
        nonce = struct.pack("<Q", random.getrandbits(64))
        self.send("ping", nonce)
        while self.wait_for("pong") != nonce:
            pass

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
