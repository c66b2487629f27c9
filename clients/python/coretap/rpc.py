"""The node's RPC, as little of it as a mirror of the mempool needs."""
import base64
import http.client
import json
import os
from decimal import Decimal
from typing import Any, Optional
from urllib.parse import unquote, urlsplit


class RPCError(Exception):
    """The node could not be asked, or answered with an error."""


class RPC:
    """rpc("getrawmempool", True). Either a cookie file (read again when the node has restarted), or
    user and password, or both in the url: http://user:password@127.0.0.1:8332."""

    def __init__(self, url: str = "http://127.0.0.1:8332", cookie: Optional[str] = None,
                 user: Optional[str] = None, password: Optional[str] = None,
                 timeout: float = 120) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url}: not an address; give http://HOST:PORT")
        self.host, self.port = parts.hostname, parts.port or 8332
        self.path = parts.path or "/"
        self.cookie = os.path.expanduser(cookie) if cookie else None
        self.user = unquote(parts.username or "") if user is None else user
        self.password = unquote(parts.password or "") if password is None else password
        self.timeout = timeout

    def __call__(self, method: str, *params: Any) -> Any:
        """Amounts come as Decimal, so that they stay exact."""
        body = json.dumps({"jsonrpc": "1.0", "id": 1, "method": method, "params": params})
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        try:
            connection.request("POST", self.path, body, {
                "Authorization": f"Basic {self._credentials()}", "Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise RPCError(f"{self.host}:{self.port}: {error}") from None
        finally:
            connection.close()
        if response.status == 401:
            raise RPCError(f"{self.host}:{self.port}: wrong user, password or cookie")
        try:
            answer = json.loads(text, parse_float=Decimal)
            refused, result = answer["error"], answer.get("result")
        except (ValueError, KeyError, TypeError):
            raise RPCError(f"{self.host}:{self.port}: HTTP {response.status}") from None
        if refused:
            raise RPCError(f"{method}: {refused.get('message', refused) if isinstance(refused, dict) else refused}")
        return result

    def _credentials(self) -> str:
        text = f"{self.user}:{self.password}"
        if self.cookie:
            try:
                with open(self.cookie) as file:
                    text = file.read().strip()
            except OSError as error:
                raise RPCError(f"{self.cookie}: {error.strerror}; is the node running?") from None
        return base64.b64encode(text.encode()).decode()


def satoshi(amount: Any) -> int:
    """An amount in BTC as RPC prints it."""
    return int(Decimal(amount) * 100_000_000)
