"""Columns of tokens and tags, as the usual corpora have them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.training.label_files.conll import read_conll
from model.training.label_files.reader import read_labelled
from model.training.label_files.readings import FormatError, Reading
from model.training.spans import LabelledText


def read(tmp_path: Path, content: str) -> Reading:
    """What a file with this content holds."""
    path = tmp_path / "data.txt"
    path.write_text(content, encoding="utf-8")
    return read_labelled(path)


def named(text: LabelledText) -> list[tuple[str, str]]:
    """What is labelled, and how."""
    return [(text.text[span.start : span.end], span.label) for span in text.spans]


def test_conll_2003_has_two_columns_of_tags_and_documents(tmp_path: Path) -> None:
    """The last column is the entities'; -DOCSTART- is no sentence; IOB1 keeps neighbours apart by B."""
    reading = read(
        tmp_path,
        "-DOCSTART- -X- -X- O\n\nAda NNP I-NP I-PER\nLovelace NNP I-NP I-PER\nmet VBD I-VP O\n"
        "In NNP I-NP I-LOC\nOslo NNP I-NP B-LOC\n. . O O\n\nNo DT I-NP O\n",
    )
    assert reading.format == "conll, IOB1"
    assert not reading.bad
    assert [text.text for text in reading.texts] == ["Ada Lovelace met In Oslo.", "No"]
    assert named(reading.texts[0]) == [("Ada Lovelace", "PER"), ("In", "LOC"), ("Oslo", "LOC")]


def test_universal_ner_gives_the_text_in_a_comment(tmp_path: Path) -> None:
    """Numbered tokens, and the text as it was written, in which the spans then lie."""
    reading = read(
        tmp_path,
        "# sent_id = 1\n# text = 北京，Ada Lovelace's home.\n1\t北京\tB-LOC\t-\t-\n2\t，\tO\t-\t-\n"
        "3\tAda\tB-PER\t-\t-\n4\tLovelace\tI-PER\t-\t-\n5\t's\tO\t-\t-\n6\thome\tO\t-\t-\n7\t.\tO\t-\t-\n",
    )
    assert reading.format == "conll, IOB2"
    assert reading.texts[0].text == "北京，Ada Lovelace's home."
    assert named(reading.texts[0]) == [("北京", "LOC"), ("Ada Lovelace", "PER")]


def test_a_comment_that_is_not_the_tokens_is_passed_over(tmp_path: Path) -> None:
    """Then the text is rebuilt."""
    reading = read(tmp_path, "# text = Something else\nOslo\tB-LOC\nfell\tO\n")
    assert reading.texts[0].text == "Oslo fell"


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        (("B-DRUG", "M-DRUG", "E-DRUG", "S-SYM"), "BMES"),
        (("B-DRUG", "I-DRUG", "E-DRUG", "S-SYM"), "BIOES"),
        (("B-DRUG", "I-DRUG", "L-DRUG", "U-SYM"), "BILOU"),
        (("B-DRUG", "I-DRUG", "I-DRUG", "B-SYM"), "IOB2"),
        (("I-DRUG", "I-DRUG", "I-DRUG", "I-SYM"), "IOB1"),
        (("DRUG", "DRUG", "DRUG", "SYM"), "plain"),
        (("B_DRUG", "I_DRUG", "I_DRUG", "B_SYM"), "IOB2"),
    ],
)
def test_every_scheme_gives_the_same_spans(tmp_path: Path, tags: tuple[str, ...], scheme: str) -> None:
    """Told from the tags; Chinese by character is joined without spaces, a column of a space is one."""
    tokens = "服 O|用 O|板 {}|蓝 {}|根 {}|治 O|咳 {}|  O|了 O"
    reading = read(tmp_path, tokens.format(*tags).replace("|", "\n") + "\n")
    assert reading.format == f"conll, {scheme}"
    assert reading.texts[0].text == "服用板蓝根治咳 了"
    assert named(reading.texts[0]) == [("板蓝根", "DRUG"), ("咳", "SYM")]


def test_spaces_stand_where_the_script_has_them(tmp_path: Path) -> None:
    """Between English and Korean words, not beside Chinese ones or their punctuation."""
    tokens = ["我", "用", "iPhone", "打", "，", "Tim", "Cook", "说", "。", "서울", "은", "OK"]
    reading = read(tmp_path, "".join(f"{token}\tO\n" for token in tokens) + "x\tB-X\n")
    assert reading.texts[0].text == "我用iPhone打，Tim Cook说。서울 은 OK x"


def test_a_column_of_spaces_decides_where_the_file_has_one(tmp_path: Path) -> None:
    """As CoNLL-U says it; what does not say so has a space behind it, even a word before a full stop."""
    reading = read(
        tmp_path,
        "1\tOslo\tB-LOC\tSpaceAfter=No\n2\t-\tO\tGloss=x|SpaceAfter=No\n3\tbased\tO\t_\n4\t.\tO\t_\n\n"
        "1\t北京\tB-LOC\t_\n2\t人\tO\tSpaceAfter=No\n",
    )
    assert [text.text for text in reading.texts] == ["Oslo-based .", "北京 人"]
    assert named(reading.texts[0]) == [("Oslo", "LOC")]
    assert not reading.notes


def test_brackets_of_treebanks_are_found_in_the_text_of_a_comment(tmp_path: Path) -> None:
    """Tokens have them as -LRB-, the text as it was written has them as brackets."""
    reading = read(tmp_path, "# text = Oslo(city)\nOslo\tB-LOC\n-LRB-\tO\ncity\tO\n-RRB-\tO\n")
    assert reading.texts[0].text == "Oslo(city)"
    assert not reading.notes


def test_texts_made_again_are_counted_and_may_have_all_their_spaces(tmp_path: Path) -> None:
    """Who tags texts that were cut into tokens needs to learn from such; comments do not count then."""
    content = "# text = Is it Oslo?\nIs\tO\nit\tO\nOslo\tB-LOC\n?\tO\n\nNo\tO\n.\tO\n"
    reading = read(tmp_path, content)
    assert [text.text for text in reading.texts] == ["Is it Oslo?", "No."]
    (note,) = reading.notes
    assert note.startswith("1 texts were made again with spaces as people write them")
    spaced = read_labelled(tmp_path / "data.txt", "conll-spaced")
    assert [text.text for text in spaced.texts] == ["Is it Oslo ?", "No ."]
    assert named(spaced.texts[0]) == [("Oslo", "LOC")]
    assert not spaced.notes


def test_english_in_letters_is_joined_in_a_file_by_character(tmp_path: Path) -> None:
    """Chinese sets cut "iOS" into three lines."""
    reading = read(tmp_path, "用 O\ni B-P\nO I-P\nS I-P\n")
    assert reading.texts[0].text == "用iOS"


def test_the_number_sign_is_a_token_where_it_has_a_tag(tmp_path: Path) -> None:
    """Social media posts are full of it; a remark has no tag."""
    reading = read(tmp_path, "# a remark of several words\n# O\nnews O\nfrom O\nOslo B-LOC\n")
    assert reading.texts[0].text == "# news from Oslo"
    assert not reading.bad


def test_a_faulty_line_costs_its_sentence_only(tmp_path: Path) -> None:
    """With the number of the line itself."""
    good = "Oslo\tB-LOC\nis\tO\ncold\tO\n\n" * 9
    reading = read(tmp_path, good + "in\tO\nRio\n\nin\tO\nRome\tB_\n\n\tB-LOC\n")
    assert len(reading.texts) == 9
    assert [(line.line - 36, line.reason.split(";")[0]) for line in reading.bad] == [
        (2, "1 columns where the file has 2"),
        (5, "'B_' is no tag such as O and B-PER"),
        (7, "no token"),
    ]


def test_tags_out_of_place_are_read_as_beginnings_and_counted(tmp_path: Path) -> None:
    """As conlleval and seqeval read them, and not in silence."""
    reading = read(tmp_path, "in O\nRio I-LOC\n\nin O\nOslo B-LOC\nAda I-PER\n")
    assert named(reading.texts[1]) == [("Oslo", "LOC"), ("Ada", "PER")]
    assert reading.notes == ["2 tags are out of place in IOB2; each was read as the start of an entity"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("Oslo\nis\ncold\n", "neither in columns"),
        ("Oslo B\nis O\n", "name no entity type"),
        ("Oslo U-LOC\nAda S-PER\n", "two schemes"),
        ("Oslo B-LOC\nis nice\n", "neither in columns"),
    ],
)
def test_a_file_without_usable_tags_is_refused(tmp_path: Path, content: str, words: str) -> None:
    """Better than a model of noise."""
    with pytest.raises(FormatError, match=words):
        read(tmp_path, content)


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.text(
                    st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="#-`'"), min_size=1
                ),
                st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]),
            ),
            min_size=1,
            max_size=8,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_sentence_is_read_or_reported(sentences: list[list[tuple[str, str]]]) -> None:
    """Whatever the tokens: each labelled stretch is its tokens, joined by spaces or nothing."""
    lines = [line for sentence in sentences for line in [*(f"{token}\t{tag}" for token, tag in sentence), ""]]
    reading = read_conll(Path("x"), lines)
    assert len(reading.texts) + len(reading.bad) == len(sentences)
    if not reading.bad:
        for text, sentence in zip(reading.texts, sentences, strict=True):
            assert text.text.replace(" ", "") == "".join(token for token, _ in sentence)
            inside = "".join(text.text[span.start : span.end] for span in text.spans).replace(" ", "")
            assert inside == "".join(token for token, tag in sentence if tag != "O")
