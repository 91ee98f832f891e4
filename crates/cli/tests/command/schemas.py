"""Checks files of deploy/ against their schemas, and prints them as JSON, an object per document.

Usage: PYTHONPATH=FOLDER schemas.py FILE, where FOLDER has kubernetes-validate and docker-compose. Ends with 1 if a document is refused.
"""

import importlib.util
import json
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml


def refuse(reason):
    sys.exit(f"refused: {reason}")


def check(document):
    if "apiVersion" in document:
        # Keys that no schema knows are refused.
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        return
    # The schema of the compose specification; its package is not imported, since it needs many others.
    place = importlib.util.find_spec("compose").submodule_search_locations[0]
    schema = json.loads((pathlib.Path(place) / "config/compose_spec.json").read_text())
    jsonschema.Draft201909Validator(schema).validate(document)


with open(sys.argv[1], encoding="utf-8") as file:
    documents = list(yaml.safe_load_all(file))
for document in documents:
    try:
        check(document)
    except jsonschema.ValidationError as error:
        refuse(error.message)
    print(json.dumps(document))
