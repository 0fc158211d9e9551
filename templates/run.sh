#!/bin/sh
# Runs a module of this release: RHINO_PYTHON=/path/to/python3 sh run MODULE ARGUMENT...
# The release is the directory that this file is in, with links followed once: what a running
# process imports later, or starts, is of the same release, though `current` was switched meanwhile.
# -S: packages that the host's interpreter has, and what they start with it, are none of ours.
here=$(CDPATH='' cd -P -- "$(dirname -- "$0")" && pwd -P) || exit 1
PYTHONPATH=$here/site
PYTHONNOUSERSITE=1
PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH PYTHONNOUSERSITE PYTHONDONTWRITEBYTECODE
exec "${RHINO_PYTHON:-python3}" -S -P -m "$@"
