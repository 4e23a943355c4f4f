"""TeX in JSON comes through as it is, however its backslashes are written."""

from __future__ import annotations

import json

import pytest

from engines.core.text.maths import escape_tex
from engines.core.text.reply import parse_objects

FORMULAS = r"""
\frac{1}{2}
\dfrac{a+b}{c} - \tfrac{1}{3}
\text{cm}^2 \times \text{s}^{-1}
\nu = \frac{c}{\lambda}
x \neq y
\nabla \cdot \mathbf{E} = \frac{\rho}{\varepsilon_0}
\beta \approx 0.5
\left( \frac{x}{y} \right)^n
\binom{n}{k} = \frac{n!}{k!(n-k)!}
\boxed{42}
\rho \le \tau
a \not\equiv b \pmod{m}
x \notin \{1, 2\}
\forall \epsilon > 0
\bar{x} \to \infty
\theta = \arctan\left(\frac{b}{a}\right)
\tan\theta = \frac{\sin\theta}{\cos\theta}
\lfloor x \rfloor + \lceil y \rceil
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
\begin{cases} x & x > 0 \\ -x & \text{otherwise} \end{cases}
\begin{array}{c|c} a & b \\ \hline c & d \end{array}
\sum_{i=1}^{n} i = \frac{n(n+1)}{2}
\int_0^1 f(x)\,dx
\sqrt[3]{27} = 3
\langle u, v \rangle
\overline{AB} \parallel \overline{CD}
\triangle ABC \sim \triangle DEF
\therefore \neg p
\newpage \title{x} \toprule
\negthinspace a \nVdash b
a \nmid b \text{ and } a \nleq b
\underline{x} \ne \tilde{y}
\mathrm{rank}(A) \geq \root 3 \of 8
\bigcup_{i} A_i \setminus \bigcap_j B_j
\hat{p} \pm 1.96\sqrt{\frac{p(1-p)}{n}}
\fbox{x} \bullet \rightarrow \Rightarrow
50\% of \$18 is \$9
\textbf{(B)}\ 12
f'(x) = \lim_{h \to 0} \frac{f(x+h)-f(x)}{h}
\{\, x \in \mathbb{R} \mid x^2 < 2 \,\}
\(a^2 + b^2\) and \[c^2\]
\operatorname{gcd}(a, b) \cdot \operatorname{lcm}(a, b)
""".strip().split("\n")

FORMS = ("{}", "${}$", "Use {} first.", "First: {}", r"\({}\)")


def test_there_are_at_least_forty_formulas() -> None:
    assert len(set(FORMULAS)) >= 40


@pytest.mark.parametrize("formula", FORMULAS)
def test_tex_comes_through_byte_for_byte(formula: str) -> None:
    for form in FORMS:
        text = form.format(formula)
        for end in ("}]", ",}]"):  # as JSON, and as what must be mended
            doubled = '[{"experience": ' + json.dumps(text) + end
            single = '[{"experience": "' + text + '"' + end
            assert parse_objects(doubled) == [{"experience": text}]
            assert parse_objects(single) == [{"experience": text}]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"First.\nThen \\frac{1}{2}\n\nDone", "First.\nThen \\frac{1}{2}\n\nDone"),
        (r"Let\nu = 2.", "Let\nu = 2."),
        (r"for x.\ni.e. always", "for x.\ni.e. always"),
        (r"where\ne is", "where\ne is"),
        (r"steps:\n1. one\n2. two\r\n\tif x", "steps:\n1. one\n2. two\r\n\tif x"),
        (r"a\tb\\tc", "a\tb\\tc"),
        (r"say \"hi\" \u2019 \/ \\", 'say "hi" ’ / \\'),
        (r"\nabla and\nnot all", "\\nabla and\nnot all"),
        (r"\\(x\\) and \\[2pt]", r"\(x\) and \[2pt]"),
        (r"\\( \frac{1}{2} \\) holds", r"\( \frac{1}{2} \) holds"),
        (r"C:\\dir\\new", r"C:\dir\new"),
        (r"\bword\b, \d+ and \s", r"\bword\b, \d+ and \s"),
        (r"\uABC and \u12", r"\uABC and \u12"),
    ],
)
def test_escapes_that_are_meant_stay(written: str, meant: str) -> None:
    assert json.loads(escape_tex(f'"{written}"')) == meant


def test_one_text_may_double_its_backslashes_and_the_next_not() -> None:
    reply = r'[{"a": "\\frac{1}{2} \\\\ 3", "b": "\frac{1}{2} \\ 3"}]'
    assert parse_objects(reply) == [{"a": r"\frac{1}{2} \\ 3", "b": r"\frac{1}{2} \\ 3"}]


def test_many_backslashes_cost_linear_work() -> None:
    text = '"' + r"\nu $ \\ \frac " * 14_000
    assert len(escape_tex(text)) < 2 * len(text)
