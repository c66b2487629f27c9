#!/usr/bin/python3
"""Writes coretap/catalogue.py from protocol/events.json. With --check it only compares."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "..", "..", "protocol", "events.json")
TARGET = os.path.join(HERE, "coretap", "catalogue.py")

TYPES = {"uint": "Optional[int]", "int": "Optional[int]", "bool": "Optional[bool]",
         "hash": "Optional[bytes]", "bin": "Optional[bytes]", "text": "Optional[str]",
         "hashes": "Optional[Hashes]", "uints": "Optional[Numbers]", "ints": "Optional[Numbers]",
         "conflicts": "Optional[Dict[str, Union[Hashes, Numbers]]]"}

HEAD = '''"""The events of the catalogue as classes. Written by generate.py from protocol/events.json.

The fields are those that any node may pass: one that an older node lacks is absent from its events.
"""
from typing import Dict, Optional, Tuple, Type, Union

from .events import Event, Hashes, Numbers
'''


def class_name(topic):
    return "".join(word.capitalize() for word in topic.replace("_", ".").split("."))


def render(events):
    out = [HEAD]
    for event in events:
        out.append(f'\n\nclass {class_name(event["topic"])}(Event):\n'
                   f'    """{event["doc"]}"""\n\n    __slots__ = ()\n'
                   f'    socket = "{event["socket"]}"\n')
        for field in event["fields"]:
            unit = f'{field["unit"]}: ' if field["unit"] else ""
            out.append(f'    {field["name"]}: {TYPES[field["type"]]}  # {unit}{field["doc"]}\n')
    out.append("\n\n# Of each topic: its class, and the types of its fields.\n"
               "CATALOGUE: Dict[str, Tuple[Type[Event], Dict[str, str]]] = {\n")
    for event in events:
        fields = ", ".join(f'"{f["name"]}": "{f["type"]}"' for f in event["fields"])
        out.append(f'    "{event["topic"]}": ({class_name(event["topic"])}, {{{fields}}}),\n')
    return "".join(out) + "}\n"


def main():
    with open(SOURCE) as source:
        text = render(json.load(source)["events"])
    if sys.argv[1:] == ["--check"]:
        with open(TARGET) as target:
            sys.exit(0 if target.read() == text else f"{TARGET}: stale, run {sys.argv[0]}")
    with open(TARGET, "w") as target:
        target.write(text)


if __name__ == "__main__":
    main()
