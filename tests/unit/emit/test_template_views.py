"""Each template reads just the fields of its view."""

from __future__ import annotations

from dataclasses import fields

import jinja2
import jinja2.meta
import pytest

from remat_codegen.emit import template_views
from remat_codegen.emit.templates import View, templates
from remat_codegen.marked import file

VIEWS = [
    view
    for module in (template_views, file)
    for view in vars(module).values()
    if isinstance(view, type) and hasattr(view, "template")
]


def test_each_template_of_generated_files_has_a_view():
    assert {view.template for view in VIEWS} == {name for name in templates().list_templates() if name.endswith(".py.jinja")}


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.template)
def test_a_template_reads_the_fields_of_its_view(view):
    assert issubclass(view, View)
    environment = templates()
    source, *_ = environment.loader.get_source(environment, view.template)
    read = jinja2.meta.find_undeclared_variables(environment.parse(source))
    assert read - environment.globals.keys() == {f.name for f in fields(view)}
