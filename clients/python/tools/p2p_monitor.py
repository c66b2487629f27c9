#!/usr/bin/python3
"""Shows peers and the messages to and from them. Prints the messages when output is no terminal."""
import curses
import sys

from common import coretap, follow, parser, plain, put, screen, subscribe


class Peer:
    def __init__(self, event):
        self.id = event.get("peer_id")
        self.address = plain(event.get("addr"))
        self.type = plain(event.get("connection_type"))
        self.network = ""
        self.count = {"inbound": 0, "outbound": 0}
        self.bytes = {"inbound": 0, "outbound": 0}


def line(event):
    inbound = event.topic == "net.inbound_message"
    return (f"{'from' if inbound else 'to':<4} peer {event.get('peer_id')} {plain(event.get('addr'))} "
            f"({plain(event.get('connection_type'))}): {plain(event.get('msg_type')) or '(empty)'}, "
            f"{event.get('size')} byte")


class Monitor:
    def __init__(self):
        self.peers = {}
        self.notice = ""

    def handle(self, item):
        if isinstance(item, coretap.Notice):
            self.notice = str(item)
            return
        if item.topic == "net.misbehaving_connection":
            return
        if item.topic in ("node.started", "node.exited"):
            self.peers.clear()  # another process counts its peers anew
            return
        peer = self.peers.get(item.get("peer_id"))
        if not peer:
            peer = self.peers[item.get("peer_id")] = Peer(item)
        if item.topic == "net.closed_connection":
            self.peers.pop(peer.id)
        elif item.topic.endswith("_message"):
            direction = item.topic[4:].split("_")[0]
            peer.count[direction] += 1
            peer.bytes[direction] += item.get("size") or 0
        else:
            peer.network = plain(item.get("network"))

    def draw(self, window):
        put(window, 0, 1, f"P2P Monitor: {len(self.peers)} peers. q to stop.", curses.A_REVERSE)
        put(window, 1, 1, self.notice)
        row = "{:>6} {:<22} {:<10} {:>9} {:>13} {:>9} {:>13}  {}"
        put(window, 2, 1, row.format("PEER", "TYPE", "NETWORK", "OUT", "BYTES", "IN", "BYTES",
                                     "ADDRESS"), curses.A_BOLD)
        busiest = sorted(self.peers.values(), key=lambda p: -sum(p.bytes.values()))
        for at, p in enumerate(busiest, 3):
            put(window, at, 1, row.format(str(p.id), p.type, p.network, p.count["outbound"],
                                          p.bytes["outbound"], p.count["inbound"],
                                          p.bytes["inbound"], p.address))


def main():
    options = parser(__doc__).parse_args()
    messages = ("net.inbound_message", "net.outbound_message")
    if not sys.stdout.isatty():
        with subscribe(options, *messages) as stream:
            follow(stream, lambda event: print(line(event)))
        return
    monitor = Monitor()
    with subscribe(options, "net.", "node.") as stream:
        screen(stream, monitor.handle, monitor.draw)


if __name__ == "__main__":
    main()
