"""The text of what was fetched: what a reader of the page sees, without scripts and hidden parts.

What only a style sheet or a script hides or shows is not known here.
"""

from __future__ import annotations

import re
from typing import Any

from engines.core.codec import fix_surrogates
from engines.tools.web.address import FetchFailed
from engines.tools.web.fetch import Fetched

_READ = re.compile(r"|text/(html|plain|markdown|xml|csv)|application/([\w.-]+\+)?(xml|json)")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w-]{2,20})", re.IGNORECASE)
# Of the codecs that Python has, some are no charsets, and "punycode" takes quadratic time.
_USUAL = re.compile(r"(?:utf|iso|windows|cp|shift|euc|gb|big5|koi8|us-ascii|ascii|latin|mac)[\w-]*")
_UNSEEN = (
    "//script|//style|//noscript|//template|//svg|//iframe|//object|//comment()|//*[@hidden]"
    "|//*[@aria-hidden='true']"
)
_UNSEEN_STYLE = re.compile(
    r"display:none|visibility:hidden|(?:opacity|font-size):0(?:\.0*)?(?:px|pt|em|%)?(?:;|$)"
    r"|(?:left|top|text-indent):-\d{3}"
)
MAX_ELEMENTS = 30_000
"""Of more, all text is taken: what finds the main text takes 25 s of 600,000 of them."""


def read_text(fetched: Fetched) -> tuple[str, str]:
    """Title and text; takes a second of a large page. FetchFailed: there is none to read."""
    kind = fetched.content_type.partition(";")[0].strip().lower()
    if not _READ.fullmatch(kind):
        raise FetchFailed(f"{fetched.url} is of the type {kind[:60]}, and only text is read.")
    # By the charset that is named, else UTF-8; what does not fit it is shown as U+FFFD.
    head = fetched.body[:2_000].decode("ascii", "replace")
    named = _CHARSET.search(fetched.content_type) or _CHARSET.search(head)
    charset = named[1].lower() if named and _USUAL.fullmatch(named[1].lower()) else "utf-8"
    try:
        title, text = "", fetched.body.decode(charset, "replace")
    except LookupError:
        text = fetched.body.decode("utf-8", "replace")
    if "html" in kind or not kind:
        title, text = _read_html(text, fetched.url)
    if not (text := fix_surrogates(text).strip("\ufeff \n")):
        raise FetchFailed(f"{fetched.url} has no text that could be read.")
    return " ".join(title.split())[:200], text


def _read_html(text: str, url: str) -> tuple[str, str]:
    import lxml.html
    from lxml.etree import ParserError
    from trafilatura import bare_extraction, html2txt

    try:
        parser = lxml.html.HTMLParser(encoding="utf-8")
        tree: Any = lxml.html.document_fromstring(text.encode("utf-8", "replace"), parser)
    except ParserError:  # it is empty
        return "", ""
    title = str(tree.findtext(".//title") or "")
    styles = tree.xpath("//@style")
    unseen = [s.getparent() for s in styles if _UNSEEN_STYLE.search("".join(s.lower().split()))]
    for node in (*unseen, *tree.xpath(_UNSEEN)):
        if node.getparent() is not None:
            node.drop_tree()
    found: Any = None
    if tree.xpath("count(//*)") <= MAX_ELEMENTS:
        found = bare_extraction(tree, url=url, include_comments=False)
    return title, str(found.text if found else "") or html2txt(tree, clean=False)
