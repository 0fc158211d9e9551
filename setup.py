"""The one part of the packaging that `pyproject.toml` cannot say.

There, the list of packages is either found or written out. Here, code is found under two roots and
two directories of data join it: read them with ``importlib.resources.files`` of
``rhinoctl_data.playbooks`` and ``rhinoctl_data.templates``.
"""

from setuptools import find_packages, setup

DATA = {"rhinoctl_data.playbooks": "playbooks", "rhinoctl_data.templates": "templates"}
AGENT = find_packages("agents", include=["rhino_agent*"])

setup(
    packages=[*find_packages(include=["rhinoctl*"]), *AGENT, *DATA],
    package_dir={"rhino_agent": "agents/rhino_agent", **DATA},
    package_data={name: ["**/*"] for name in DATA},
    exclude_package_data={"": ["*.pyc"]},
)
