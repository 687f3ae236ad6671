"""Records as JSON: written as orjson would, in pieces if there are many."""

import asyncio
import threading
from typing import Any

import orjson
import pytest

from service.admission import AnswerTooLargeError
from service.result_json import encode_results


def _shape(number: int) -> dict[str, Any]:
    return {"n": number, "text": "退货", "score": number / 7}


@pytest.mark.parametrize("lengths", [[], [0], [0, 1, 0], [255, 1], [256, 256], [257], [1000, 0, 3]])
async def test_pieces_make_the_same_json_as_the_whole(lengths: list[int]) -> None:
    """Wherever the borders fall, empty lists included."""
    results = [list(range(length)) for length in lengths]
    around = (b'{"hits":[', b"]}")
    assert orjson.loads(await encode_results(results, _shape)) == [
        [_shape(number) for number in records] for records in results
    ]
    assert orjson.loads(await encode_results(results, _shape, around=around)) == [
        {"hits": [_shape(number) for number in records]} for records in results
    ]


@pytest.mark.parametrize("lengths", [[3], [300], [1000, 3]])
async def test_no_more_is_written_than_may_be_sent(lengths: list[int]) -> None:
    """Up to the last byte; and no more is made of one that is too large than a piece."""
    results = [list(range(length)) for length in lengths]
    whole = await encode_results(results, _shape)
    assert await encode_results(results, _shape, max_bytes=len(whole)) == whole
    with pytest.raises(AnswerTooLargeError, match=r"more than 50 bytes.*CONCHE_LIMITS__MAX_ANSWER_BYTES"):
        await encode_results(results, _shape, max_bytes=50)
    made: list[int] = []

    def shape(number: int) -> dict[str, Any]:
        made.append(number)
        return _shape(number)

    with pytest.raises(AnswerTooLargeError):
        await encode_results(results, shape, max_bytes=50)
    assert len(made) <= 256


async def test_the_event_loop_turns_while_a_large_answer_is_written() -> None:
    """Probes are answered meanwhile; a small one is not worth the way to a thread."""
    here = threading.current_thread()
    go_on = threading.Event()

    def shape(number: int) -> dict[str, Any]:
        assert threading.current_thread() is not here
        assert go_on.wait(60)
        return _shape(number)

    writing = asyncio.create_task(encode_results([range(1000)], shape))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(go_on.set)
    assert len(orjson.loads(await writing)[0]) == 1000

    def shape_here(number: int) -> dict[str, Any]:
        assert threading.current_thread() is here
        return _shape(number)

    await encode_results([range(10)], shape_here)
