"""What a Spark job needs on this machine, checked before anything is started."""

import os
import re
import shutil
import subprocess

from rhinoctl.errors import MissingJava, UnsupportedSpark
from rhinoctl.ops.cluster import read_versions

JAVA_MIN = 17
SPARK_MIN = (4, 2)

JAVA_S = 20.0
"""A JVM says its version within a second, or several on a loaded machine."""

INSTALL_JAVA = (
    "install a Java runtime of version 17 or later (Debian, Ubuntu: openjdk-17-jre-headless),"
    " or let JAVA_HOME name one"
)


def check_java() -> int:
    """The major version of the Java that Spark will use. Raises MissingJava."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        raise MissingJava("there is no java on the PATH", remedy=INSTALL_JAVA)
    try:
        run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_S)
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise MissingJava(f"{java} does not run: {fault}", remedy=INSTALL_JAVA) from fault
    version = java_major(run.stderr + run.stdout)
    if version is None:
        raise MissingJava(f"{java} does not say its version", remedy=INSTALL_JAVA)
    if version < JAVA_MIN:
        raise MissingJava(f"{java} is of version {version}", remedy=INSTALL_JAVA)
    return version


def java_major(text: str) -> int | None:
    """The major version in what ``java -version`` prints: 17 of "17.0.15", 8 of "1.8.0_392"."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def check_spark() -> str:
    """The version of PySpark that is installed here. Raises UnsupportedSpark."""
    version = read_versions().pyspark
    least = ".".join(map(str, SPARK_MIN))
    if version is None:
        raise UnsupportedSpark(
            "PySpark is not installed here", remedy="pip install 'rhinoctl[spark]'"
        )
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < SPARK_MIN:
        raise UnsupportedSpark(
            f"PySpark {version} is installed here, and {least} or later is needed",
            remedy="pip install 'rhinoctl[spark]'",
        )
    return version
