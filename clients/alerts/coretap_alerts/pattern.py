"""Regular expressions whose time is bounded whatever text a stranger sends.

Python's own backtrack: (a+)+$ takes for ever on "aaaa…b". Here all ways through the expression are
followed at once, so that a text of n characters takes n steps of at most MAX_STATES each. Known are
. [..] \\d \\w \\s and their opposites, ( ), |, * + ? {m,n}, ^ and $, and (?i) in front.
"""
import re
from typing import Any, Callable, List, Optional, Set, Tuple

MAX_STATES = 200
MAX_LENGTH = 300  # of an expression

_TOKEN = re.compile(r"\[\^?\]?(?:\\.|[^]\\])*\]|\\.|\{\d{1,3}(?:,\d{0,3})?\}|[\s\S]")
# A program is a list of states: ("char", test), ("split", a, b), ("begin",), ("end",), ("match",).
# Except after a split, what follows is the next state.
State = Tuple[Any, ...]


class Pattern:
    """Raises ValueError when the expression is not one of those above."""

    def __init__(self, source: str) -> None:
        self._flags = re.DOTALL
        if source.startswith("(?i)"):
            source, self._flags = source[4:], re.DOTALL | re.IGNORECASE
        if len(source) > MAX_LENGTH:
            raise ValueError(f"longer than {MAX_LENGTH} characters")
        self._tokens: List[str] = _TOKEN.findall(source)
        self._program: List[State] = [*self._alternatives(), ("match",)]
        if self._tokens:
            raise ValueError("a ) without its (")

    def search(self, text: str) -> bool:
        states: Set[int] = set()
        for at in range(len(text) + 1):
            reached: Set[int] = set()
            for state in (*states, 0):  # 0: it may begin anywhere
                self._follow(state, at == 0, at == len(text), reached)
            if len(self._program) - 1 in reached:
                return True
            states = {state + 1 for state in reached
                      if self._program[state][0] == "char" and at < len(text) and
                      self._program[state][1](text[at])}
        return False

    def _follow(self, state: int, begin: bool, end: bool, reached: Set[int]) -> None:
        ahead = [state]
        while ahead:
            state = ahead.pop()
            if state in reached:
                continue
            reached.add(state)
            op = self._program[state]
            if op[0] == "split":
                ahead += (state + op[1], state + op[2])
            elif op[0] == "begin" and begin or op[0] == "end" and end:
                ahead.append(state + 1)

    # ---- the parser: each part gives a piece of program; jumps in it are relative ----

    def _alternatives(self) -> List[State]:
        first = self._sequence()
        if not self._tokens or self._tokens[0] != "|":
            return first
        self._tokens.pop(0)
        second = self._alternatives()
        return self._bounded([("split", 1, len(first) + 2), *first,
                              ("split", len(second) + 1, len(second) + 1), *second])

    def _sequence(self) -> List[State]:
        program: List[State] = []
        while self._tokens and self._tokens[0] not in "|)":
            piece = self._atom(self._tokens.pop(0))
            if self._tokens and re.fullmatch(r"[*+?]|\{\d.*\}", self._tokens[0]):
                piece = self._repeated(piece, self._tokens.pop(0))
            program = self._bounded(program + piece)
        return program

    def _repeated(self, piece: List[State], how: str) -> List[State]:
        least, _, most = {"*": "0,", "+": "1,", "?": "0,1"}.get(how, how.strip("{}")).partition(",")
        if "," not in how and how[0] == "{":
            most = least
        if most and int(most) < int(least):
            raise ValueError(f"{how}: the wrong way round")
        skip, program = len(piece) + 1, piece[:0]
        for _ in range(int(least)):
            program = self._bounded(program + piece)
        if not most:
            return program + [("split", 1, skip + 1), *piece, ("split", -skip, 1)]
        for _ in range(int(most) - int(least)):
            program = self._bounded(program + [("split", 1, skip), *piece])
        return program

    def _atom(self, token: str) -> List[State]:
        if token == "(":
            if self._tokens and self._tokens[0] == "?":
                raise ValueError("(? is not supported, but (?i) in front")
            program = self._alternatives()
            if not self._tokens:
                raise ValueError("a ( without its )")
            self._tokens.pop(0)
            return program
        if token in "^$":
            return [("begin" if token == "^" else "end",)]
        if token in "*+?[\\" or re.fullmatch(r"\{\d.*\}", token):
            raise ValueError(f"{token} has nothing to stand for")
        if token[0] == "\\" and token[1].isalnum() and token[1] not in "dDwWsS":
            raise ValueError(f"{token} is not supported")
        return [("char", self._character(token))]

    def _character(self, token: str) -> Callable[[str], Optional[Any]]:
        if "[" in token[1:].replace("\\[", ""):
            raise ValueError(f"{token}: write [ as \\[ in a class")
        try:
            # One character or class: there is nothing to go back to.
            return re.compile(token if len(token) > 1 or token == "." else re.escape(token),
                              self._flags).fullmatch
        except re.error as error:
            raise ValueError(f"{token}: {error.msg}") from None

    @staticmethod
    def _bounded(program: List[State]) -> List[State]:
        if len(program) > MAX_STATES:
            raise ValueError(f"too large: more than {MAX_STATES} states")
        return program
