"""Makes alerts of events and notices. Everything that it remembers is in the state."""
import hashlib
import time
from typing import Any, Callable, Dict, List, Optional, Set

from coretap import Event, Item, to_json

from .document import RuleError
from .rules import NOTICES, Rule, Rules
from .state import State
from .watch import WATCHED, News, Watch

MAX_KEYS = 100_000  # that `once` and `every` remember, of all rules together


class Alerter:
    """block: gives the txids of a block, by RPC; None when there is none to ask."""

    def __init__(self, rules: Rules, state: State, block: Optional[Callable[[str], Set[str]]] = None,
                 clock: Callable[[], float] = time.time) -> None:
        self.rules = rules
        self.state = state
        self.clock = clock
        names = {rule.name for rule in rules.rules}
        for kind in ("watched", "pending", "told"):
            for key in [key for key in state.tables[kind] if key[0] not in names]:
                del state.tables[kind][key]
        self._told = state.tables["told"]
        self._watches = {rule.name: Watch(rule, state.tables["watched"], state.tables["pending"], block)
                         for rule in rules.rules if rule.watch}
        self._of_topic: Dict[str, List[Rule]] = {}

    def reload(self) -> List[str]:
        """Takes watch lists that have changed. Returns what is wrong with them."""
        wrong = []
        for watch in self._watches.values():
            try:
                watch.reload()
            except RuleError as error:
                wrong.append(str(error))
        return wrong

    def feed(self, item: Item) -> None:
        """What is an alert is in state.alerts then."""
        if item.kind == "event":
            for rule in self._rules_for(item.topic):
                if rule.watch:
                    for news in self._watches[rule.name].event(item):
                        self._tell_news(rule, item, news)
                elif rule.matches(item):
                    self._tell(rule, item, "event", _summary(item))
        elif item.kind in NOTICES:
            for rule in self.rules.rules:
                if rule.watch:
                    for news in self._watches[rule.name].notice(item):
                        self._tell_news(rule, item, news)
                elif item.kind in rule.notices and self._concerns(rule, item):
                    self._tell(rule, item, item.kind, str(item))

    def _rules_for(self, topic: str) -> List[Rule]:
        rules = self._of_topic.get(topic)
        if rules is None:
            watched = topic in WATCHED
            rules = self._of_topic[topic] = [
                rule for rule in self.rules.rules
                if (watched if rule.watch else not rule.notices and rule.wants(topic))]
        return rules

    @staticmethod
    def _concerns(rule: Rule, notice: Any) -> bool:
        if notice.kind == "new_run":
            return bool(notice.socket == "low")  # both sockets tell it
        return not rule.topics or rule.wants(notice.topic)

    def _tell_news(self, rule: Rule, item: Any, news: News) -> None:
        if news.what not in rule.on:
            return
        who = news.txid.hex() if news.txid else f"{news.details['count']} transactions"
        details: Dict[str, Any] = {"txid": news.txid} if news.txid else {}
        self._tell(rule, item, news.what, f"{who} {news.what}", {**details, **news.details})

    def _tell(self, rule: Rule, item: Any, what: str, text: str,
              details: Optional[Dict[str, Any]] = None) -> None:
        suppressed = self._due(rule, item)
        if suppressed is None:
            return
        details = details or {}
        where = f"{item.run}/{item.socket or item.topic}/"
        if isinstance(item, Event):
            where += str(item.n)
            head = {"node": item.node, "run": item.run, "time_us": item.time_us}
            fields = rule.fields or (("hash", "height") if rule.watch and item.topic == "block.evictions" else None)
            body = (item if fields is None else type(item)(
                item.topic, item.node, item.run, item.seq, item.n, item.pid, item.time_us,
                {name: item.fields[name] for name in fields if name in item.fields})).json()
        else:
            where += ":".join(filter(None, (item.kind, item.topic, item.first and str(item.first))))
            head, body = {"node": item.node, "run": item.run}, item.json()
        number = f"{where}/{rule.name}"
        if "txid" in details and item.topic == "block.evictions":
            number += f"/{details['txid'].hex()}"  # several of one event
        head = {"id": number, "rule": rule.name, "what": what, "text": f"{rule.name}: {text}", **head, **details}
        if suppressed:
            head["suppressed"] = suppressed
        kind = "event" if isinstance(item, Event) else "notice"
        alert = f'{to_json(head)[:-1]},"{kind}":{body}}}'
        for webhook in rule.webhooks:
            self._send(webhook, alert)

    def _send(self, webhook: str, alert: str) -> None:
        """Into the outbox, unless it is full. Then the next one that has room tells how many had none."""
        dropped = self.state.tables["dropped"]
        if self.state.queued.get(webhook, 0) + len(alert) > self.rules.webhooks[webhook].queue:
            dropped[webhook, ""] = dropped.get((webhook, ""), 0) + 1
            return
        missed = dropped.pop((webhook, ""))
        self.state.add(webhook, f'{alert[:-1]},"dropped":{missed}}}' if missed else alert)

    def _due(self, rule: Rule, item: Any) -> Optional[int]:
        """None: it is not to be told, as another with its key was. Else how many were not since."""
        if rule.every_us is None:
            return 0
        values = [item.node if name == "node" else item.get(name) for name in rule.key]
        key = rule.name, hashlib.sha256(to_json(values).encode()).hexdigest()[:32]
        now = item.time_us or int(self.clock() * 1e6)
        last = self._told.get(key)
        if last and not rule.every_us:
            return None
        # A clock that was set back must not silence a rule for long.
        if last and abs(now - last[0]) < (rule.every_us or 0):
            self._told[key] = [last[0], last[1] + 1]
            return None
        self._told[key] = [now, 0]
        if len(self._told) > MAX_KEYS:
            for old in sorted(self._told, key=lambda k: int(self._told[k][0]))[:MAX_KEYS // 10]:
                del self._told[old]
        return last[1] if last else 0


def _summary(event: Any) -> str:
    """For people. Without texts, which strangers may have chosen to be read as markup."""
    fields = (f"{name}={to_json(value)}".replace('"', "") for name, value in event.fields.items()
              if type(value) in (int, bool) or type(value) is bytes and len(value) == 32)
    return " ".join((event.topic, *fields))
