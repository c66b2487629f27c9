#!/usr/bin/python3
"""Logs P2P messages with their payload in hexadecimal; coretapd must run with --payload full."""
from common import coretap, follow, parser, plain, subscribe


def line(event):
    data = event.get("data")
    warning = ""
    if data is None:
        warning = "Warning: no payload (coretapd runs without --payload)! " if event.get("size") else ""
    elif event.size is not None and len(data) < event.size:
        warning = f"Warning: incomplete message (only {len(data)} out of {event.size} bytes)! "
    direction = "inbound" if event.topic == "net.inbound_message" else "outbound"
    return (f"{warning}{direction} msg '{plain(event.get('msg_type'))}' from peer "
            f"{event.get('peer_id')} ({plain(event.get('connection_type'))}, "
            f"{plain(event.get('addr'))}) with {event.get('size')} bytes: {(data or b'').hex()}")


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--decode", action="store_true", help="print what the message says too")
    options = arguments.parse_args()

    def handle(event):
        print(line(event))
        data = event.get("data")
        if options.decode and data is not None and event.msg_type in coretap.p2p.DECODERS:
            try:
                print("   ", coretap.p2p.decode(event.msg_type, data))
            except coretap.p2p.DecodeError as error:
                print(f"    not decoded: {error}")

    print("Logging raw P2P messages.")
    with subscribe(options, "net.inbound_message", "net.outbound_message") as stream:
        follow(stream, handle)


if __name__ == "__main__":
    main()
