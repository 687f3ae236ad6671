"""Tokens become texts as people write them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.training.label_files.joining import Joiner, as_written

# Shows, as a file's other sentences do, that its tokenizer keeps numbers and compounds whole.
WHOLE = ["1.5", "well-known", "and/or", "a@b"]


def joined(tokens: str, *others: str) -> str:
    """The text of tokens that are given with spaces between them."""
    sentence = tokens.split(" ")
    text, borders = Joiner([sentence, others]).join(sentence)
    assert [text[start:end] for start, end in borders] == sentence
    return text


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("He left , did n't he ? Yes !", "He left, didn't he? Yes!"),
        ("It cost $ 62 . 99 ( 20 % ) , she said ; no : €5 ...", "It cost $62.99 (20%), she said; no: €5..."),
        ("US$ 5 or 7 € or A$ 9", "US$5 or 7 € or A$9"),
        ("Bob 's and John ’s [ sic ] “ own ” ‘ dog ’ „ hier “", "Bob's and John’s [sic] “own” ‘dog’ „hier“"),
        ("Up 5 % at No. # 1 for 1 , 000 people at 10 : 30", "Up 5% at No. #1 for 1,000 people at 10:30"),
        ("In 2003 , 120 came", "In 2003, 120 came"),
        ("an Oslo - based bus and / or a train to x @ y", "an Oslo-based bus and/or a train to x@y"),
        ("¿ Qué ? ¡ No !", "¿Qué? ¡No!"),
        ("* * * really ? ? ? - -", "*** really??? --"),
        ("7 < 9 & 3 + 4", "7 < 9 & 3 + 4"),
        ("He is in .NET and :) too", "He is in .NET and :) too"),
    ],
)
def test_spaces_stand_where_people_put_them(tokens: str, text: str) -> None:
    """None before a closing mark, none behind an opening one or a sign of money, none in a word or number."""
    assert joined(tokens) == text


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("In 1999 . 12 came", "In 1999. 12 came"),
        ("On May 5 , 200 came", "On May 5, 200 came"),
        ("Oslo - the city - fell", "Oslo - the city - fell"),
        ("either / or", "either / or"),
    ],
)
def test_a_tokenizer_that_keeps_words_whole_cut_nothing_inside_them(tokens: str, text: str) -> None:
    """The file's other tokens tell."""
    assert joined(tokens, *WHOLE) == text


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ('He said : " No . "', 'He said: "No."'),
        ('It ended . "', 'It ended."'),  # opened in the sentence before
        ('" It begins', '"It begins'),
        ("Bob ' s dog doesn ' t", "Bob's dog doesn't"),
        ("the boys ' dog", "the boys' dog"),
        ("rock ' n ' roll", "rock 'n' roll"),
    ],
)
def test_quotation_marks_open_and_close_by_turns(tokens: str, text: str) -> None:
    """And an apostrophe is none."""
    assert joined(tokens) == text


def test_chinese_has_no_spaces() -> None:
    """Nor has what stands beside it; Korean has."""
    assert joined("我 用 iPhone 打 ， 价格 是 $ 62 . 99 。 서울 은") == "我用iPhone打，价格是$62.99。서울 은"
    assert joined("用 i O S") == "用iOS"


def test_brackets_and_quotes_of_treebanks_are_written_out() -> None:
    """No reader of texts meets -LRB-."""
    assert list(map(as_written, ["-LRB-", "-RRB-", "``", "''", "LRB"])) == ["(", ")", '"', '"', "LRB"]


def test_with_all_spaces_only_scripts_without_them_are_joined() -> None:
    """For texts that come cut into tokens where the tagger is used."""
    tokens = ["It", "'s", "$", "5", ".", "北京", "。"]
    assert Joiner([tokens], spaced=True).join(tokens)[0] == "It 's $ 5 .北京。"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1), min_size=1))
def test_every_token_is_where_it_is_said_to_be(tokens: list[str]) -> None:
    """Nothing but single spaces is put between them."""
    text, borders = Joiner([tokens]).join(tokens)
    assert [text[start:end] for start, end in borders] == tokens
    assert all(after[0] - before[1] in (0, 1) for before, after in itertools.pairwise(borders))
    assert len(text) == borders[-1][1]
