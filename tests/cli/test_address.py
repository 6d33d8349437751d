"""What `up` says of an address that cannot be listened on."""

import socket

import pytest

from taskgate.up.address import AddressError, check_free


def test_a_port_that_is_taken_says_to_choose_another() -> None:
    said = "stop what uses it, or choose another with TASKGATE_PORT"
    with socket.create_server(("127.0.0.1", 0)) as holder, pytest.raises(AddressError, match=said):
        check_free("127.0.0.1", holder.getsockname()[1])


@pytest.mark.parametrize("host", ["192.0.2.1", "a" * 70])
def test_an_address_that_is_not_ours_names_the_host(host: str) -> None:
    with pytest.raises(AddressError, match="TASKGATE_HOST") as refused:
        check_free(host, 0)
    assert "stop what uses it" not in str(refused.value)
