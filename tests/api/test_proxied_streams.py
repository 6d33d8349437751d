"""Streams as they reach people: through nginx, which compresses and buffers, into a browser's EventSource."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import httpx_sse
import pytest

from taskgate.contract.ids import new_task_id
from taskgate.contract.models import Claimed
from tests.api.chromium import Browser, chromium
from tests.api.conftest import Served, Worker, submit
from tests.api.nginx import nginx
from tests.api.test_events import client
from tests.api.test_logs import said
from tests.conftest import eventually
from tests.processes import free_port
from tests.system.rig import until_answered

pytestmark = [pytest.mark.full, pytest.mark.timeout(240)]
Serve = Callable[..., Awaitable[Served]]


async def running(served: Served, worker: Worker, count: int) -> list[Claimed]:
    async with client(served) as http:
        for _ in range(count):
            await submit(http, type="any", payload="<b>not HTML</b>")
    return await worker.claim(count)


async def test_events_pass_nginx_at_once_though_it_compresses_and_buffers(
    serve: Serve, worker: Worker, tmp_path: Path
) -> None:
    """Each is told once the one before has arrived: a buffer would keep it for good."""
    served = await serve()
    [task] = await running(served, worker, 1)
    ages: list[float] = []
    arrived: asyncio.Queue[None] = asyncio.Queue()
    with nginx(tmp_path / "nginx", served.port) as url:
        headers = {"Accept-Encoding": "gzip"}
        async with httpx.AsyncClient(base_url=url, timeout=60, headers=headers, trust_env=False) as http:
            await until_answered(http, "/livez")
            whole = await http.get(f"/tasks/{task.id}")
            assert whole.headers["content-encoding"] == "gzip", "it does compress"
            async with httpx_sse.aconnect_sse(http, "GET", f"/tasks/{task.id}/events") as source:
                telling = asyncio.ensure_future(_tell(worker, task, arrived))
                async for event in source.aiter_sse():
                    if event.event == "custom":
                        ages.append(time.time() - event.json()["at"])
                        arrived.put_nowait(None)
                    if event.event == "end":
                        break
                await telling
    ages.sort()
    assert len(ages) == 40
    assert ages[20] < 1, ages


async def _tell(worker: Worker, task: Claimed, arrived: asyncio.Queue[None]) -> None:
    for _ in range(40):
        await worker.report(task, events=[("custom", b'{"at":%f}' % time.time())])
        await arrived.get()
    await worker.finish(task)


async def test_the_example_page_shows_bars_resumes_and_ends(serve: Serve, worker: Worker, tmp_path: Path) -> None:
    """A restart of the gateway is a 502 to the browser, which ends its EventSource: the page makes a new one."""
    port = free_port()
    served = await serve(port=port)
    one, other = await running(served, worker, 2)
    folder = tmp_path / "chromium"
    folder.mkdir()
    with nginx(tmp_path / "nginx", port) as url, chromium(folder) as browser:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            await until_answered(http, "/livez")
        missing = new_task_id()
        browser.open(f"{url}/watch.html?task={one.id}&task={missing}&task={other.id}&task=..")
        await _shows(browser, "#connection", "connected")
        for absent in (missing, ".."):
            await _shows(browser, f'[data-id="{absent}"] .state', "no such task, or no longer")
        told = b'{"current":1,"total":4,"percent":25.0,"stage":"reading","message":"<b>page</b> 1"}'
        await worker.report(one, progress=told)
        await _is(browser, _width(one), "25%")
        await _shows(browser, f'[data-id="{one.id}"] .state', "reading, <b>page</b> 1")
        for number in range(3):
            await worker.report(
                one, events=[("custom", b'{"name":"step","n":%d,"data":"<i>%d</i>"}' % (number, number))]
            )
        await _shows(browser, f'[data-id="{one.id}"] .says', '"<i>2</i>"')
        pieces = [said("torn in "), said("two\nand\n"), said("after\n", dropped_bytes=7)]
        await worker.report(other, logs=pieces)
        await _shows(browser, f'[data-id="{other.id}"] .says', "after")

        assert await served.stop() == 0
        await worker.report(one, events=[("custom", b'{"name":"step","n":3,"data":"meanwhile"}')])
        await _shows(browser, "#connection", "reconnecting")
        browser.value_of("lastId = 'nobody was given that one'")
        await serve(port=port)
        await _shows(browser, f'[data-id="{one.id}"] .says', "meanwhile")
        await worker.finish(one)
        await _is(browser, _width(one), "100%")
        await worker.finish(other, "failed", error=b'{"kind":"exception","message":"<b>boom</b>"}')
        await _shows(browser, f'[data-id="{other.id}"] .state', "failed, exception: <b>boom</b>")
        await _shows(browser, "#connection", "done")
        gap = "… something is missing here …"
        assert _says(browser, one) == ['"<i>0</i>"', '"<i>1</i>"', '"<i>2</i>"', gap, '"meanwhile"', ""], "each once"
        lost = "… 7 bytes of its output are missing here …"
        assert _says(browser, other) == ["torn in two", "and", lost, "after", gap, ""]
        assert browser.value_of("document.querySelectorAll('.says *, .state *').length") == 0, "text, never HTML"

        browser.open(f"{url}/watch.html")
        await _shows(browser, "#connection", "add ?task=ID")


def _says(browser: Browser, task: Claimed) -> list[str]:
    found: str = browser.value_of(f"document.querySelector('[data-id=\"{task.id}\"] .says').textContent")
    return found.split("\n")


def _width(task: Claimed) -> str:
    return f"document.querySelector('[data-id=\"{task.id}\"] .bar div').style.width"


async def _shows(browser: Browser, selector: str, text: str) -> None:
    async def shown() -> str:
        return str(browser.value_of(f"document.querySelector('{selector}')?.textContent"))

    await eventually(shown, lambda found: text in found, within_s=60, every_s=0.1)


async def _is(browser: Browser, expression: str, wanted: Any) -> None:
    async def value() -> Any:
        return browser.value_of(expression)

    await eventually(value, lambda found: found == wanted, within_s=60, every_s=0.1)


async def test_the_example_page_asks_for_a_key_and_streams_by_tokens(
    serve: Serve, worker: Worker, tmp_path: Path
) -> None:
    """EventSource sends no key; the page shows none in any address."""
    served = await serve(api_key="the-first-key")
    async with client(served) as http:
        http.headers["Authorization"] = "Bearer the-first-key"
        task_id = (await submit(http, type="any", payload=None))["id"]
    [task] = await worker.claim()
    assert task.id == task_id
    folder = tmp_path / "chromium"
    folder.mkdir()
    with nginx(tmp_path / "nginx", served.port) as url, chromium(folder) as browser:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            await until_answered(http, "/livez")
        browser.open(f"{url}/watch.html?task={task.id}")
        await _shows(browser, "#connection", "a key is needed")
        browser.value_of("document.querySelector('#login input').value = 'the-first-key'")
        browser.value_of("document.querySelector('#login').requestSubmit()")
        await _shows(browser, "#connection", "connected")
        await worker.report(task, progress=b'{"current":1,"total":4,"percent":25.0}')
        await _is(browser, _width(task), "25%")
        await worker.finish(task)
        await _shows(browser, "#connection", "done")
        addresses = str(browser.value_of("performance.getEntriesByType('resource').map((each) => each.name).join(' ')"))
        assert "token=" in addresses
        assert "the-first-key" not in addresses
