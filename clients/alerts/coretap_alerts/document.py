"""A YAML file of which every complaint names file, line and field."""
import re
from typing import Dict, List, Optional

import yaml

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_TAG = "tag:yaml.org,2002:"


class RuleError(ValueError):
    """The rules cannot be used; the text says where and why."""


class Field:
    """A value in the file, and how one gets there: rules[2].where.fee."""

    def __init__(self, file: str, path: str, node: yaml.Node) -> None:
        self.file = file
        self.path = path
        self.node = node

    def error(self, text: str) -> RuleError:
        place = f"{self.file}:{self.node.start_mark.line + 1}: "
        return RuleError(place + (f"{self.path}: {text}" if self.path else text))

    def is_list(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    def is_map(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    def has_type(self, name: str) -> bool:
        """As YAML sees a plain value: null, bool, int, str, ..."""
        return bool(self.node.tag == _TAG + name)

    def map(self, *known: str, required: str = "") -> Dict[str, "Field"]:
        """The fields of a map; those that are not among known are refused, if any are named."""
        if not self.is_map():
            raise self.error("wants fields, as NAME: VALUE")
        fields: Dict[str, Field] = {}
        for key, value in self.node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            field = Field(self.file, f"{self.path}.{name}".lstrip("."), value)
            if name in fields or known and name not in known:
                field.node = key
                raise field.error("stands twice" if name in fields else
                                  f"no such field; there are {', '.join(known)}")
            fields[name] = field
        if required and required not in fields:
            raise self.error(f"{required} is missing")
        return fields

    def items(self) -> "List[Field]":
        """The elements of a list; a single value is a list of one."""
        if not self.is_list():
            return [self]
        return [Field(self.file, f"{self.path}[{i}]", node) for i, node in enumerate(self.node.value)]

    def text(self, pattern: str = r"[\s\S]+", form: str = "a text") -> str:
        if not isinstance(self.node, yaml.ScalarNode) or not re.fullmatch(pattern, self.node.value):
            raise self.error(f"not {form}")
        return str(self.node.value)

    def number(self) -> int:
        return int(self.text(r"[+-]?[0-9](_?[0-9]){0,29}", "a whole number"))

    def boolean(self) -> bool:
        return self.text("true|false", "true or false") == "true"

    def seconds(self) -> float:
        value = self.text(r"[0-9]{1,9}(ms|s|m|h|d)", "a duration like 500ms, 10s, 5m, 1h or 1d")
        unit = value.lstrip("0123456789")
        seconds = int(value[:-len(unit)]) * _SECONDS[unit]
        if not 0 < seconds <= 366 * 86400:
            raise self.error("must be more than nothing, and at most 366d")
        return seconds


def read(path: str) -> Field:
    """The document in a file. Raises RuleError."""
    try:
        with open(path, "rb") as file:
            node: Optional[yaml.Node] = yaml.compose(file, yaml.SafeLoader)
    except OSError as error:
        raise RuleError(f"{path}: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise RuleError(f"{path}{line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the latter of numbers, of \U in a text
        raise RuleError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise RuleError(f"{path}: nested too deep") from None
    if node is None:
        raise RuleError(f"{path}: empty")
    return Field(path, "", node)
