"""The choice of pieces can be made anew from texts."""

from model.export.e5s1 import read_e5s1
from model.export.kept_pieces import choose_pieces
from tests.model.export.e5s1_files import PIECES, e5s1_file


def test_pieces_that_the_texts_use_stay() -> None:
    """Beside Chinese, symbols and single letters, which stay whatever the texts are."""
    model = read_e5s1(e5s1_file())
    kept = {PIECES[index] for index in choose_pieces(model, ["return 123\n", "好\n"])}
    assert set(PIECES) - kept == {"▁hello", "été", "ми"}
    assert "▁hello" in {PIECES[index] for index in choose_pieces(model, ["hello"])}
