"""The text of a page is what its reader sees."""

from __future__ import annotations

import pytest

from engines.tools.web.fetch import Fetched, FetchFailed
from engines.tools.web.tools import MAX_ELEMENTS, read_text

PAGE = """<html><head><title> A
 title </title><style>p {color: red}</style><script>steal()</script></head><body><article>
<h1>Heading</h1><p>The first paragraph says enough to be taken for the text of this page.</p>
<p>The second one is <b style="color: red">red</b> and says something, too, to its readers.</p>
%s</article><noscript>enable scripts</noscript></body></html>"""


def fetched(body: bytes | str, kind: str = "text/html; charset=utf-8") -> Fetched:
    raw = body.encode() if isinstance(body, str) else body
    return Fetched("https://x.org/", 200, kind, raw)


@pytest.mark.parametrize(
    "hidden",
    [
        "<p hidden>SECRET</p>",
        "<div style='Display : none'><p>SECRET</p></div>",
        "<p style='visibility:hidden'>SECRET</p>",
        "<p style='opacity: 0'>SECRET</p>",
        "<p style='font-size:0px;'>SECRET</p>",
        "<p style='position:absolute; left:-9999px'>SECRET</p>",
        "<p aria-hidden='true'>SECRET</p>",
        "<!-- SECRET -->",
        "<template><p>SECRET</p></template>",
        "<script>SECRET</script><style>SECRET</style><svg><text>SECRET</text></svg>",
    ],
)
def test_scripts_and_hidden_parts_are_not_in_it(hidden: str) -> None:
    title, text = read_text(fetched(PAGE % hidden))
    assert title == "A title"
    assert "The first paragraph" in text and "second one is red and says" in " ".join(text.split())
    for unseen in ("SECRET", "steal", "color", "enable scripts"):
        assert unseen not in text


def test_what_is_shown_faintly_or_in_small_is_text() -> None:
    shown = "<p style='opacity: 0.9; font-size: 0.9em; left: -5px'>This is shown to everybody.</p>"
    assert "shown to everybody" in read_text(fetched(PAGE % shown))[1]


def test_a_short_page_and_one_of_links_alone_have_text() -> None:
    assert read_text(fetched("<p>short</p>")) == ("", "short")
    links = "".join(f"<a href='https://x.org/{n}'>link {n}</a> " for n in range(10_000))
    _, text = read_text(fetched(f"<html><body>{links}"))
    assert text.count("link") == 10_000


def test_a_page_of_very_many_parts_is_taken_whole() -> None:
    page = "<html><body>" + "<p>part</p>" * (MAX_ELEMENTS + 1)
    assert read_text(fetched(page))[1].count("part") == MAX_ELEMENTS + 1


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("Grüße".encode("latin-1"), "text/plain; charset=ISO-8859-1", "Grüße"),
        ("<meta charset='windows-1252'><p>Grüße".encode("cp1252"), "text/html", "Grüße"),
        ("Grüße".encode("latin-1"), "text/plain; charset=utf-8", "Gr\ufffd\ufffde"),
        ("Grüße".encode(), "text/plain; charset=no-such", "Grüße"),
        (b"abc-", "text/plain; charset=punycode", "abc-"),
        ("\ufeffGrüße".encode(), "text/plain", "Grüße"),
        (b'{"a": 1}', "application/json", '{"a": 1}'),
        (b"<rss>news</rss>", "application/rss+xml", "<rss>news</rss>"),
        (b"plain", "", "plain"),
    ],
)
def test_a_charset_is_followed_where_it_is_one(body: bytes, kind: str, text: str) -> None:
    assert read_text(fetched(body, kind))[1] == text


@pytest.mark.parametrize("kind", ["application/pdf", "image/png", "application/octet-stream"])
def test_what_is_no_text_is_refused(kind: str) -> None:
    with pytest.raises(FetchFailed, match=f"is of the type {kind}, and only text is read"):
        read_text(fetched(b"%PDF-1.7", kind))


@pytest.mark.parametrize("body", ["", "<html></html>", "<script>x</script>", "<div>" * 100_000])
def test_a_page_without_text_says_so(body: str) -> None:
    with pytest.raises(FetchFailed, match="has no text that could be read"):
        read_text(fetched(body))
