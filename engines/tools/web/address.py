"""Which addresses of a network a tool may reach.

A name is looked up once; each address that it has is judged, and it is such an address that is
then connected to. So no name can mean one thing when it is judged and another when it is reached.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host; raises OSError."""
_NOT_PUBLIC = (
    *map(ip_network, ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")),  # Azure's metadata
    *map(ip_network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")),  # Teredo, 6to4
)
_GLOBAL, _NAT64 = IPv6Network("2000::/3"), IPv6Network("64:ff9b::/96")


class FetchFailed(Exception):
    """Why nothing from outside can be read, in words for the model; `status` is an answer's."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


async def resolve_name(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether it lies in the internet."""
    if address.version == 6 and address in _NAT64:  # how IPv4 is reached where there is none
        return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
    if address.version == 6:
        usable = address in _GLOBAL  # not ::1, ::ffff:127.0.0.1, local and multicast ones
    else:
        usable = address.is_global and not address.is_multicast
    return usable and not any(address in network for network in _NOT_PUBLIC)


@dataclass(frozen=True, slots=True)
class AddressGuard:
    """Lets public addresses pass, and those that a person has listed as `host` or `host:port`."""

    allow_hosts: tuple[str, ...] = ()
    resolve: Resolve = resolve_name

    async def find_addresses(self, host: str, port: int) -> Sequence[str]:
        """The addresses that `host` has now; FetchFailed where one of them may not be reached."""
        try:
            found = await self.resolve(host, port)
        except (OSError, OverflowError, UnicodeError) as error:
            raise FetchFailed(f"the name {host} leads to no address ({error}).") from None
        listed = {entry.lower() for entry in self.allow_hosts}
        for address in found:
            names = (host.lower(), f"[{host}]", address, f"[{address}]")
            is_listed = not listed.isdisjoint((*names, *(f"{name}:{port}" for name in names)))
            if not is_listed and not is_public(ip_address(address)):
                cause = f"{host} is at {address}, which is no public address: nothing was sent."
                raise FetchFailed(f"{cause} A person can list it in allow_hosts.")
        return found
