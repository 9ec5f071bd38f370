"""What is computed beside the server: for those who wait, one after another, and never for long."""

import asyncio
import os
import time

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from whichtoken.app.workbench.workers import Worker
from whichtoken.errors import UsageError


def asking(gone=None):
    """A request whose client goes when the event is set."""

    async def receive():
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "method": "GET", "headers": []}, receive)


@pytest.fixture
def worker():
    made = Worker(seconds=60, most=5)
    yield made
    made.close()


def test_it_is_another_process_and_the_loop_goes_on_meanwhile(worker):
    async def main():
        assert await worker.answer(asking(), "os:getpid") not in (os.getpid(), None)
        slow = asyncio.create_task(worker.answer(asking(), "time:sleep", 1.0))
        turns = 0
        while not slow.done():
            await asyncio.sleep(0.01)
            turns += 1
        assert turns > 20

    asyncio.run(main())


def test_what_nobody_waits_for_is_never_begun(worker, tmp_path):
    async def main():
        await worker.answer(asking(), "os:getpid")
        first = asyncio.create_task(worker.answer(asking(), "time:sleep", 0.5))
        gone = asyncio.Event()
        left = [asyncio.create_task(worker.answer(asking(gone), "os:mkdir", tmp_path / str(n))) for n in range(3)]
        await asyncio.sleep(0.1)
        gone.set()
        assert all(isinstance(one, ClientDisconnect) for one in await asyncio.gather(*left, return_exceptions=True))
        assert not first.done()
        await worker.answer(asking(), "os:mkdir", tmp_path / "stays")  # there is room again
        await first

    asyncio.run(main())
    assert os.listdir(tmp_path) == ["stays"]


def test_one_that_is_left_while_it_runs_delays_the_next_by_itself_alone(worker, tmp_path):
    async def main():
        await worker.answer(asking(), "os:getpid")
        gone = asyncio.Event()
        left = asyncio.create_task(worker.answer(asking(gone), "time:sleep", 0.5))
        await asyncio.sleep(0.1)
        gone.set()
        with pytest.raises(ClientDisconnect):
            await left
        began = time.monotonic()
        assert await worker.answer(asking(), "builtins:len", "abc") == 3
        assert time.monotonic() - began > 0.2

    asyncio.run(main())


def test_the_queue_has_an_end(worker):
    async def main():
        waiting = [asyncio.create_task(worker.answer(asking(), "time:sleep", 0.05)) for _ in range(worker.most)]
        await asyncio.sleep(0)
        with pytest.raises(HTTPException, match="being computed already") as refused:
            await worker.answer(asking(), "os:getpid")
        assert refused.value.status_code == 503
        await asyncio.gather(*waiting)
        await worker.answer(asking(), "os:getpid")

    asyncio.run(main())


def test_one_that_takes_too_long_is_stopped_and_the_next_is_answered(worker):
    async def main():
        await worker.answer(asking(), "os:getpid")
        worker.seconds = 0.3
        with pytest.raises(UsageError, match=r"longer than 0\.3 s"):
            await worker.answer(asking(), "time:sleep", 60)
        worker.seconds = 60
        assert await worker.answer(asking(), "builtins:len", "abc") == 3

    asyncio.run(main())


def test_a_process_that_dies_is_a_sentence_and_the_next_is_answered(worker):
    async def main():
        with pytest.raises(UsageError, match="memory"):
            await worker.answer(asking(), "os:_exit", 9)
        assert await worker.answer(asking(), "builtins:len", "abc") == 3

    asyncio.run(main())


def test_mistakes_come_back_as_they_are(worker):
    async def main():
        with pytest.raises(ValueError, match="invalid literal"):
            await worker.answer(asking(), "builtins:int", "x")
        with pytest.raises(UsageError, match="is not a folder"):
            await worker.answer(asking(), "whichtoken.inspection.loading:check_folder", "/nowhere/x")

    asyncio.run(main())


def test_an_answer_is_kept_for_whoever_asks_the_same(worker):
    async def main():
        worker.kept = 2
        first = [await worker.answer(asking(), "time:time_ns", keep=True) for _ in range(2)]
        assert first[0] == first[1]
        assert await worker.answer(asking(), "time:time_ns") != first[0]
        for n in range(2):
            await worker.answer(asking(), "builtins:str", n, keep=True)
        assert await worker.answer(asking(), "time:time_ns", keep=True) != first[0]  # the oldest made room

    asyncio.run(main())


def test_a_module_in_the_working_folder_is_not_run(worker, tmp_path, monkeypatch):
    for name in ("secrets", "loky", "whichtoken", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert asyncio.run(worker.answer(asking(), "secrets:token_hex", 2))
    assert not (tmp_path / "ran").exists()
