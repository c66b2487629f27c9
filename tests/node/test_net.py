"""Peers of a real node: messages, connections, evictions, misbehaviour."""
import contextlib
import os
import re
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from harness import main, wait_until
from regtest import SCRIPT, WITNESS, Node, Peer, Tx, compact, hash256, need_tracepoints
from tap import NodeTestCase, Tap


class Proxy:
    """A SOCKS5 proxy that lets every connection end here, wherever it was meant to go."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self.listener.getsockname())
        self.arrived = []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                sock = self.listener.accept()[0]
                methods = sock.recv(2)[1]
                sock.recv(methods)
                sock.sendall(b"\x05\x00")
                kind = sock.recv(4, socket.MSG_WAITALL)[3]
                length = {1: 4, 4: 16}.get(kind) or sock.recv(1)[0]
                host = sock.recv(length, socket.MSG_WAITALL)
                port, = struct.unpack(">H", sock.recv(2, socket.MSG_WAITALL))
                sock.sendall(b"\x05\x00\x00\x01" + bytes(6))
                self.arrived.append((host, port, sock))

    def close(self):
        self.listener.close()
        for *_, sock in self.arrived:
            sock.close()


class Net(NodeTestCase):
    def info(self, node, peer):
        return next((p for p in node.rpc.getpeerinfo() if p["addr"] == peer.address), None)

    def events_of(self, tap, topic, address):
        with tap.sub.lock:
            return [e for e in tap.sub.events if e.topic == topic and e.get("addr") == address]

    # ---- messages ----

    def test_messages(self):
        """Every message in both directions, as the peer itself wrote and read it."""
        with Node() as node, Tap(node) as tap:
            with Peer.connect(node) as inside:
                self.talk(node, tap, inside, "inbound")
            for kind in ("outbound-full-relay", "block-relay-only"):
                with Peer.accept(node, kind) as outside:
                    self.talk(node, tap, outside, kind)

    def talk(self, node, tap, peer, kind):
        peer.send("getaddr")
        peer.send("coretap", bytes(100_000))  # unknown types are processed, that is ignored
        peer.send("twelve~chars", b"x")
        peer.send("", b"empty type")
        peer.send("getheaders", struct.pack("<i", 70016) + compact(0) + bytes(32))
        peer.ping()
        # Wrong checksum, and a type that does not end: dropped before anything is processed.
        peer.send("ping", bytes(8), checksum=bytes(4))
        peer.send(b"ab\0c", b"")
        del peer.sent[-2:]
        peer.ping()
        info = self.info(node, peer)
        for topic, account, per_type in (
                ("net.inbound_message", peer.sent, info["bytesrecv_per_msg"]),
                ("net.outbound_message", peer.received, info["bytessent_per_msg"])):
            wait_until(lambda: len(self.events_of(tap, topic, peer.address)) >= len(account), 10,
                       f"{len(account)} of {topic}")
            events = self.events_of(tap, topic, peer.address)
            self.assertEqual([(e["msg_type"], e["size"]) for e in events],
                             [(t, len(payload)) for t, payload in account])
            for event in events:
                self.check_event(event, peer_id=info["id"], addr=peer.address,
                                 connection_type=kind, msg_type=event["msg_type"],
                                 size=event["size"])
            self.assertEqual(info["connection_type"], kind)
            for name in ("version", "verack", "ping"):
                total = sum(e["size"] + 24 for e in events if e["msg_type"] == name)
                self.assertEqual(per_type[name], total)

    # ---- connections ----

    def check_connection(self, event, topic, info, **more):
        self.assertEqual(event.topic, topic)
        self.check_event(event, peer_id=info["id"], addr=info["addr"],
                         connection_type=info["connection_type"], network=info["network"], **more)

    def test_inbound_and_closed(self):
        need_tracepoints("net.inbound_connection", "net.closed_connection")
        onion = socket.create_server(("127.0.0.1", 0))
        onion_port = onion.getsockname()[1]
        onion.close()
        with Node(f"-bind=127.0.0.1:{onion_port}=onion") as node, Tap(node) as tap:
            with contextlib.ExitStack() as stack:
                peers = [stack.enter_context(Peer.connect(node)) for _ in range(3)]
                port, node.port = node.port, onion_port
                peers.append(stack.enter_context(Peer.connect(node)))
                node.port = port
                infos = [self.info(node, p) for p in peers]
                events = tap.take("net.inbound_connection", "net.outbound_connection")
                self.assertEqual(len(events), 4)
                for i, (event, info) in enumerate(zip(events, infos)):
                    self.check_connection(event, "net.inbound_connection", info, count=i + 1)
                self.assertEqual({e["network"] for e in events}, {"not_publicly_routable", "onion"})
                for peer in reversed(peers):
                    peer.close()
                    wait_until(lambda: not self.info(node, peer), 10, "disconnection")
            events = tap.take("net.closed_connection")
            for event, info in zip(events, reversed(infos)):
                self.check_connection(event, "net.closed_connection", info,
                                      established=info["conntime"])
            self.assertEqual(len(events), 4)

    def test_outbound(self):
        """Networks and names as getpeerinfo has them, through a proxy that goes nowhere."""
        need_tracepoints("net.outbound_connection")
        proxy = Proxy()
        name = "a" * 60 + "." + "b" * 60 + ".example"
        onion = "2gzyxa5ihm7nsggfxnu52rck2vv4rvmdlkiu3zzui5du4xyclen53wid.onion"
        targets = ["8.8.4.4:18444", "[2a00:1450:4001::1]:18444", f"{onion}:18444", f"{name}:18444",
                   "[fc12::1]:18444"]
        with Node(f"-proxy={proxy.address}", "-cjdnsreachable") as node, Tap(node) as tap:
            networks = []
            for count, target in enumerate(targets, 1):
                node.rpc.addnode(target, "onetry", False)
                info = wait_until(lambda: next((p for p in node.rpc.getpeerinfo()
                                                if p["addr"] == target), None), 10, target)
                event, = tap.take("net.outbound_connection")
                self.check_connection(event, "net.outbound_connection", info, count=count)
                self.assertEqual(event["connection_type"], "manual")
                networks.append(event["network"])
                told = wait_until(
                    lambda: self.events_of(tap, "net.outbound_message", target), 10, "version")
                self.assertEqual(told[0]["msg_type"], "version")
            self.assertEqual(networks[:3] + networks[4:], ["ipv4", "ipv6", "onion", "cjdns"])
            proxy.close()

    def test_short_lived_outbound(self):
        """Kinds of connections that end by themselves."""
        need_tracepoints("net.outbound_connection", "net.closed_connection")
        with Node() as node, Tap(node) as tap:
            for i, kind in enumerate(("feeler", "addr-fetch")):
                with self.subTest(kind), Peer.accept(node, kind, handshake=False) as peer:
                    now = int(time.time())
                    event = tap.wait(lambda e: e.topic == "net.outbound_connection")
                    self.check_event(event, peer_id=i, addr=peer.address, connection_type=kind,
                                     network="not_publicly_routable", count=1)
                    peer.close()
                    event = tap.wait(lambda e: e.topic == "net.closed_connection")
                    self.assertAlmostEqual(event["established"], now, delta=2)
                    self.check_event(event, peer_id=i, addr=peer.address, connection_type=kind,
                                     network="not_publicly_routable",
                                     established=event["established"])
                    tap.take()

    def test_evicted(self):
        """With every place taken, the next one costs somebody theirs."""
        need_tracepoints("net.evicted_inbound_connection")
        with Node("-maxconnections=40") as node, Tap(node) as tap, contextlib.ExitStack() as stack:
            places = 40 - 11  # the others are for outbound connections
            peers = [stack.enter_context(Peer.connect(node)) for _ in range(places)]
            infos = {p["addr"]: p for p in node.rpc.getpeerinfo()}
            self.assertEqual(len(infos), places)
            tap.take()
            for round_number in (1, 2):
                late = stack.enter_context(Peer.connect(node))
                events = tap.take("net.evicted", "net.inbound_connection", "net.closed")
                evicted = events[0]
                infos[late.address] = self.info(node, late)
                info = infos[evicted["addr"]]
                self.check_connection(evicted, "net.evicted_inbound_connection", info,
                                      established=info["conntime"])
                self.assertIn("selected inbound connection for eviction, "
                              f"disconnecting peer={info['id']}", node.log())
                peers.append(late)
                next(p for p in peers if p.address == info["addr"]).wait_closed()
                # The newcomer's count includes the one that was told to go.
                connected = next(e for e in events if e.topic == "net.inbound_connection")
                self.assertEqual((connected["addr"], connected["count"]),
                                 (late.address, places + 1))
                closed = next((e for e in events if e.topic == "net.closed_connection"), None) or \
                    tap.wait(lambda e: e.topic == "net.closed_connection")
                self.assertEqual(closed["peer_id"], info["id"])
                tap.take()

    def test_misbehaving(self):
        need_tracepoints("net.misbehaving_connection")
        with Node() as node:
            c = node.make_coins(1)
            bad_header = node.block_on().header[:-4]
            nonce = 0
            while hash256(bad_header + struct.pack("<I", nonce))[31] <= 0x7f:
                nonce += 1
            bad_header += struct.pack("<I", nonce)
            good = [node.block_on() for _ in range(2)]
            stolen = node.block_on(txs=[self.overspend(c[0])])
            cases = [
                ("headers", compact(2001) + bytes(81) * 2001, "headers message size = 2001"),
                ("headers", compact(1) + bad_header + b"\0", "header with invalid proof of work"),
                ("headers", compact(2) + good[0].header + b"\0" + good[1].header + b"\0",
                 "non-continuous headers sequence"),
                ("inv", compact(50001) + bytes(36) * 50001, "inv message size = 50001"),
                ("addr", compact(1001) + bytes(30) * 1001, "addr message size = 1001"),
                ("getdata", compact(50001) + bytes(36) * 50001, "getdata message size = 50001"),
                ("block", bytes.fromhex(stolen.hex), ""),
            ]
            with Tap(node) as tap:
                for kind, payload, reason in cases:
                    with self.subTest(kind=kind, reason=reason), Peer.connect(node) as peer:
                        info = self.info(node, peer)
                        tap.take()
                        at = len(node.log())
                        peer.send(kind, payload)
                        event = tap.wait(lambda e: e.topic == "net.misbehaving_connection")
                        self.check_event(event, peer_id=info["id"], reason=reason)
                        logged = re.search(r"Misbehaving: peer=(\d+)(?:: (.*))?", node.log()[at:])
                        self.assertEqual((int(logged[1]), logged[2] or ""), (info["id"], reason))
                        peer.wait_closed()

    def overspend(self, coin):
        return Tx([(coin.txid, coin.vout, 0, WITNESS)], [(coin.value + 1, SCRIPT)])


if __name__ == "__main__":
    main()
