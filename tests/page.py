"""A page read back: a strict parser, since browsers forgive what tests should not."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass
class Element:
    """A tag with what is in it; `text` includes that of its children."""

    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, tag: str) -> list[Element]:
        """Descendants with this tag, in the order of the page."""
        found = []
        for child in self.children:
            found += [child] if child.tag == tag else []
            found += child.all(tag)
        return found

    @property
    def words(self) -> str:
        """The text, white space made single."""
        return " ".join(self.text.split())


class Page(HTMLParser):
    """Refuses tags that are not closed in order, attributes that stand twice and bare ampersands."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("root", {})
        self._open = [self.root]
        self.feed(html)
        self.close()
        assert self._open == [self.root], f"never closed: {[one.tag for one in self._open[1:]]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice: {names}"
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, tag: str) -> list[Element]:
        """Every element with this tag."""
        return self.root.all(tag)

    @property
    def elements(self) -> list[Element]:
        """Every element."""
        found, waiting = [], [self.root]
        while waiting:
            element = waiting.pop()
            found.append(element)
            waiting += element.children
        return found

    def by_id(self, name: str) -> Element:
        """The one element with this id."""
        (found,) = [one for one in self.elements if one.attributes.get("id") == name]
        return found

    @property
    def ids(self) -> list[str]:
        """Of all elements that have one."""
        return [one.attributes["id"] for one in self.elements if "id" in one.attributes]
