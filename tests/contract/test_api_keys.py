"""API keys: their spelling, and what Redis keeps of them."""

import re
import string
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from taskgate.contract import api_keys, key_store
from taskgate.contract.api_keys import ApiKey, digest_of, id_of, is_key, marks_of, may_no_more, new_key
from taskgate.contract.errors import KeyNotFound, KeysFull
from taskgate.contract.key_store import KeyStore

LATE_MS = 10**14


def kept(secret: str, **more: object) -> ApiKey:
    found: dict[str, object] = {"name": "n", "tenant": "a", "scopes": ["tasks:read"], "created_ms": 1, **more}
    return ApiKey(**marks_of(secret), **found)  # type: ignore[arg-type]


@pytest.fixture
def key_store_of(redis_client: Redis) -> KeyStore:
    return KeyStore(redis_client)


def test_a_key_is_spelled_so_that_scanners_know_it() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    for key in keys:
        assert re.fullmatch(r"tg_live_[0-9A-Za-z]{32}_[0-9A-Za-z]{6}", key)
        assert is_key(key)


def test_no_single_typo_is_a_key() -> None:
    key = new_key()
    digits = string.digits + string.ascii_letters
    for place in range(len("tg_live_"), len(key)):
        for digit in digits:
            if digit != key[place] and key[place] != "_":
                assert not is_key(key[:place] + digit + key[place + 1 :])
    for other in ("", key[:-1], key + "0", key.upper(), f" {key}", key.replace("tg_live", "tg_test"), key[:-1] + "é"):
        assert not is_key(other)


async def test_a_key_is_found_by_its_digest_and_is_not_kept_itself(key_store_of: KeyStore, redis_client: Redis) -> None:
    secret = new_key()
    await key_store_of.keep_key(kept(secret, rate_per_s=2.5, burst=3, streams=4))

    [found, nothing] = await key_store_of.look_up_keys([id_of(digest_of(secret)), "0" * 16])
    assert found is not None
    assert found.key == kept(secret, rate_per_s=2.5, burst=3, streams=4)
    assert nothing is None
    [record] = await redis_client.hvals("tg:{0}:apikeys")
    assert secret[8:-7] not in str(record)


async def test_that_a_key_was_used_is_written_once_a_minute(
    key_store_of: KeyStore, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = new_key()
    key = kept(secret)
    await key_store_of.keep_key(key)
    await key_store_of.look_up_keys([key.id])
    [first] = await key_store_of.list_keys()
    assert first.used_ms > 0

    await redis_client.hset("tg:{0}:apikeys:used", key.id, first.now_ms)
    await key_store_of.look_up_keys([key.id])
    [again] = await key_store_of.list_keys()
    assert again.used_ms == first.now_ms

    await redis_client.hset("tg:{0}:apikeys:used", key.id, first.now_ms - 60_000)
    await key_store_of.look_up_keys([key.id])
    [later] = await key_store_of.list_keys()
    assert later.used_ms >= first.now_ms


async def test_a_revoked_key_is_gone_and_told_of(key_store_of: KeyStore, redis_client: Redis) -> None:
    key = kept(new_key())
    await key_store_of.keep_key(key)
    await key_store_of.use_keys([key.id])
    async with redis_client.pubsub() as pubsub:
        await pubsub.subscribe("tg:{0}:access")
        assert (await pubsub.get_message(timeout=10))["type"] == "subscribe"
        assert await key_store_of.revoke_key(key.id)
        assert (await pubsub.get_message(timeout=10))["data"] == key.id.encode()

    assert not await key_store_of.revoke_key(key.id)
    assert await key_store_of.look_up_keys([key.id]) == [None]
    await key_store_of.use_keys([key.id])
    assert await redis_client.hlen("tg:{0}:apikeys:used") == 0


async def test_what_was_revoked_meanwhile_is_not_replaced(key_store_of: KeyStore) -> None:
    old, new = kept(new_key()), kept(new_key())
    await key_store_of.keep_key(old)
    await key_store_of.revoke_key(old.id)
    with pytest.raises(KeyNotFound):
        await key_store_of.replace_key(old, new=new, expires_ms=5)
    assert await key_store_of.list_keys() == []


async def test_a_replaced_key_has_an_end(key_store_of: KeyStore) -> None:
    old, new = kept(new_key()), kept(new_key(), created_ms=2)
    await key_store_of.keep_key(old)
    await key_store_of.replace_key(old, new=new, expires_ms=5)
    found = [known.key for known in await key_store_of.list_keys()]
    assert [key.id for key in found] == [old.id, new.id]
    assert [key.expires_ms for key in found] == [5, 0]


async def test_there_are_only_so_many_keys(key_store_of: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_store, "MOST", 2)
    first = kept(new_key())
    await key_store_of.keep_key(first)
    await key_store_of.keep_key(kept(new_key()))
    with pytest.raises(KeysFull):
        await key_store_of.keep_key(kept(new_key()))
    with pytest.raises(KeysFull):
        await key_store_of.replace_key(first, new=kept(new_key()), expires_ms=LATE_MS)
    assert [known.key.expires_ms for known in await key_store_of.list_keys()] == [0, 0]
    await key_store_of.replace_key(first, new=kept(new_key()), expires_ms=1)  # which makes none more
    assert api_keys.MOST > 2


async def test_a_tenant_has_only_so_many_keys(key_store_of: KeyStore) -> None:
    first = kept(new_key())
    for each in (first, kept(new_key()), kept(new_key(), tenant="b")):
        await key_store_of.keep_key(each, most_of_tenant=2)
    with pytest.raises(KeysFull):
        await key_store_of.keep_key(kept(new_key()), most_of_tenant=2)
    with pytest.raises(KeysFull):
        await key_store_of.replace_key(first, new=kept(new_key()), expires_ms=LATE_MS, most_of_tenant=2)
    await key_store_of.replace_key(first, new=kept(new_key()), expires_ms=1, most_of_tenant=1)
    await key_store_of.keep_key(kept(new_key(), tenant="b"), most_of_tenant=2)
    assert 2 < api_keys.MOST_OF_TENANT < api_keys.MOST


async def test_keys_that_have_ended_take_no_room_and_are_purged(
    key_store_of: KeyStore, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def there() -> set[str]:
        return {known.key.id for known in await key_store_of.list_keys()}

    now_ms = round(time.time() * 1000)
    live, just, long_ago = (
        kept(new_key(), expires_ms=ends) for ends in (LATE_MS, now_ms - 1000, now_ms - api_keys.ENDED_MS - 1000)
    )
    for each in (live, just, long_ago):
        await key_store_of.keep_key(each)
        await key_store_of.use_keys([each.id])
    new = kept(new_key())
    await key_store_of.keep_key(new)
    assert await there() == {live.id, just.id, new.id}
    assert await redis_client.hlen("tg:{0}:apikeys:used") == 2

    monkeypatch.setattr(key_store, "MOST", 3)
    last = kept(new_key())
    await key_store_of.keep_key(last)
    assert await there() == {live.id, new.id, last.id}


async def test_one_key_can_be_replaced_for_ever(key_store_of: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_store, "MOST", 4)
    key = kept(new_key())
    await key_store_of.keep_key(key)
    for _ in range(12):
        new = kept(new_key())
        await key_store_of.replace_key(key, new=new, expires_ms=1)
        key = new
    assert len(await key_store_of.list_keys()) <= 5


@pytest.mark.parametrize(
    ("limits", "may"),
    [
        ({}, False), ({"rate_per_s": 5.0, "burst": 3, "streams": 2, "expires_ms": 9}, True),
        ({"rate_per_s": 1.0, "burst": 1, "streams": 1, "expires_ms": 1}, True),
        ({"rate_per_s": 5.1, "burst": 3, "streams": 2, "expires_ms": 9}, False),
        ({"rate_per_s": 5.0, "burst": 4, "streams": 2, "expires_ms": 9}, False),
        ({"rate_per_s": 5.0, "burst": 3, "streams": 3, "expires_ms": 9}, False),
        ({"rate_per_s": 5.0, "burst": 3, "streams": 0, "expires_ms": 9}, False),
        ({"rate_per_s": 5.0, "burst": 3, "streams": 2, "expires_ms": 10}, False),
        ({"rate_per_s": 5.0, "burst": 3, "streams": 2}, False),
    ],
)  # fmt: skip
def test_what_a_key_may_is_compared_in_all_it_may(limits: dict[str, Any], may: bool) -> None:
    limited = kept(new_key(), rate_per_s=5.0, burst=3, streams=2, expires_ms=9)
    key = kept(new_key(), **limits)
    assert may_no_more(key, limited) is may
    assert may_no_more(key, kept(new_key()))
    assert not may_no_more(key, kept(new_key(), tenant="b"))
    assert not may_no_more(key, kept(new_key(), scopes=["tasks:write"]))


async def test_all_who_ask_have_the_same_stream_secret_of_a_period_and_it_ends(
    key_store_of: KeyStore, redis_client: Redis
) -> None:
    first = await key_store_of.stream_secret(1, life_ms=3_600_000)
    assert len(first) >= 32
    assert await key_store_of.stream_secret(1, life_ms=9_999_999) == first
    assert await key_store_of.stream_secret(2, life_ms=3_600_000) != first
    assert 0 < await redis_client.pttl("tg:{0}:stream-secret:1") <= 3_600_000
