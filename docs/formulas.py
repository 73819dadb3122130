"""Formulas are set as MathML while the site is built: a page needs no script and no font for them."""
from docutils import nodes
from math_core import LatexToMathML

TEX = LatexToMathML()


def mathml(tex: str, display: bool) -> str:
    """A formula as MathML; lines of a display without an environment are aligned."""
    if display and "\\\\" in tex and "\\begin" not in tex:
        tex = f"\\begin{{aligned}}{tex}\\end{{aligned}}"
    tex = tex.replace("\\tag{§", "\\tag{section ")  # a tag is ASCII only
    return TEX.convert_with_local_state(tex, displaystyle=display)


def inline(translator, node: nodes.math) -> None:
    translator.body.append(f'<span class="math">{mathml(node.astext(), False)}</span>')
    raise nodes.SkipNode


def block(translator, node: nodes.math_block) -> None:
    opening = translator.starttag(node, "div", "", CLASS="math")
    translator.body.append(f"{opening}{mathml(node.astext(), True)}</div>")
    raise nodes.SkipNode


def setup(app) -> dict:
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True}
