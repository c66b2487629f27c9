"""What the tools share: options, notices on standard error, and a way to run from the source tree."""
import argparse
import curses
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import coretap  # noqa: E402
from coretap.__main__ import add_connection, connection  # noqa: E402,F401


def parser(description):
    options = argparse.ArgumentParser(description=description)
    add_connection(options)
    return options


def subscribe(options, *topics):
    try:
        return coretap.subscribe(*topics, **connection(options))
    except ValueError as error:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {error}")


def plain(text):
    """A text that a stranger chose, fit for a terminal."""
    return "?" if text is None else coretap.to_json(text)[1:-1]


def hexed(value):
    return "?" if value is None else value.hex()


def rate(fee, vsize):
    return f"{fee / vsize:.2f}" if fee is not None and vsize else "?"


def follow(subscriber, handle, idle=lambda: None, period=None):
    """Hands events to handle and prints notices; calls idle about every period seconds. Ends on
    Ctrl-C and SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while True:
            item = subscriber.next(0)
            if item is None:
                sys.stdout.flush()
                idle()
                item = subscriber.next(period)
            if isinstance(item, coretap.Notice):
                print(item, file=sys.stderr, flush=True)
            elif item is not None and handle(item):
                return
    except (KeyboardInterrupt, BrokenPipeError):
        pass


def screen(subscriber, handle, draw):
    """The same on the whole terminal: draw(window) a few times a second; notices go to handle too."""
    def loop(window):
        curses.curs_set(0)
        window.nodelay(True)
        while window.getch() not in (ord("q"), 27):
            item = subscriber.next(0.2)
            for _ in range(10000):
                if item is None:
                    break
                handle(item)
                item = subscriber.next(0)
            if item is not None:
                handle(item)
            window.erase()
            draw(window)
            window.refresh()
    try:
        curses.wrapper(loop)
    except KeyboardInterrupt:
        pass


def put(window, row, column, text, attribute=0):
    """Writes what fits."""
    rows, columns = window.getmaxyx()
    if 0 <= row < rows and column < columns - 1:
        window.addnstr(row, column, text, columns - 1 - column, attribute)
