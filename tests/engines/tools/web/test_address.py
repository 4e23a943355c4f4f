"""What lies in the internet, and what a tool is kept from."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

import pytest

from engines.tools.web.fetch import AddressGuard, FetchFailed, is_public, resolve_name


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "0.0.0.0", "255.255.255.255"),
        *("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254"),
        *("100.64.0.1", "192.88.99.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "203.0.113.1"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "2002:7f00:1::", "2001:0:1::1"),
        *("64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::808:808", "3fff::1", "5f00::1"),
    ],
)
def test_what_is_not_in_the_internet_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "2a00:1450::1", "64:ff9b::808:808"]
)
def test_what_is_in_the_internet_is_public(address: str) -> None:
    assert is_public(ip_address(address))


def naming(*addresses: str, allow: tuple[str, ...] = ()) -> AddressGuard:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return AddressGuard(allow, resolve)


async def test_a_name_with_one_private_address_among_public_ones_is_refused() -> None:
    with pytest.raises(FetchFailed, match=r"mixed\.org is at 10\.0\.0\.1, which is no public"):
        await naming("8.8.8.8", "10.0.0.1").find_addresses("mixed.org", 80)


@pytest.mark.parametrize(
    ("listed", "passes"),
    [
        ("Wiki.intern", True),
        ("wiki.intern:8080", True),
        ("10.0.0.1", True),
        ("10.0.0.1:8080", True),
        ("wiki.intern:80", False),
        ("intern", False),
        ("10.0.0.1:80", False),
    ],
)
async def test_a_private_address_passes_where_a_person_lists_it(listed: str, passes: bool) -> None:
    guard = naming("10.0.0.1", allow=(listed,))
    if passes:
        assert await guard.find_addresses("wiki.intern", 8080) == ("10.0.0.1",)
        return
    with pytest.raises(FetchFailed, match="A person can list it in allow_hosts"):
        await guard.find_addresses("wiki.intern", 8080)


async def test_an_address_of_ipv6_is_listed_in_brackets() -> None:
    guard = naming("::1", allow=("[::1]:8080",))
    assert await guard.find_addresses("::1", 8080) == ("::1",)


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.0.0.1", "localhost", "[::1]"])
async def test_other_ways_to_write_this_machine_lead_to_it_and_are_refused(host: str) -> None:
    with pytest.raises(FetchFailed):
        await AddressGuard(resolve=resolve_name).find_addresses(host.strip("[]"), 80)


async def test_a_name_that_is_not_known_says_so() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise OSError(-2, "Name or service not known")

    with pytest.raises(FetchFailed, match=r"the name no\.where leads to no address"):
        await AddressGuard((), resolve).find_addresses("no.where", 80)
