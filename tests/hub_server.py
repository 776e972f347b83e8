"""The Hub's own protocol on this machine: enough of it to push, pull and refuse models.

Names and answers are those of the real service, so that the real clients can be used unchanged.
Blobs lie in memory; nothing is listened to but 127.0.0.1.
"""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

USER, TOKEN = "ada", "the-token-of-ada"
LARGEST_BODY = 64 * 2**20
LARGE_FILES = (".safetensors", ".bin", ".pt")
REPO, PART = r"([\w.-]+/[\w.-]+)", r"([^/?]+)"


class HubError(Exception):
    """An answer that is not a success: status, the Hub's code for it, and what to tell."""

    def __init__(self, status, code="", message="", body=None):
        super().__init__(message)
        self.status, self.code, self.message, self.body = status, code, message, body


@dataclass
class File:
    content: bytes
    is_large: bool

    @property
    def sha256(self):
        return hashlib.sha256(self.content).hexdigest()

    @property
    def oid(self):
        """As git names a blob."""
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()

    def entry(self, path):
        size = len(self.content)
        found = {"type": "file", "path": path, "size": size, "oid": self.oid}
        lfs = {"oid": self.sha256, "size": size, "pointerSize": 134}
        return {**found, "lfs": lfs} if self.is_large else found


@dataclass
class Repository:
    is_private: bool
    kind: str = "model"
    sdk: str | None = None  # of a Space
    branches: dict = field(default_factory=dict)  # name -> sha
    commits: dict = field(default_factory=dict)  # sha -> path -> File

    def commit(self, branch, files):
        names = "".join(f"{path} {file.oid}\n" for path, file in sorted(files.items()))
        text = f"{len(self.commits)} {branch}\n{names}"
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.commits[sha], self.branches[branch] = files, sha
        return sha

    def sha(self, revision):
        sha = self.branches.get(revision, revision)
        if sha not in self.commits:
            raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha


class Hub:
    """Repositories by id, and what each request does to them; `HubServer` speaks for it."""

    def __init__(self):
        self.repositories, self.uploads = {}, {}
        self.lock = threading.Lock()
        self.endpoint = ""
        self.takes_large_files = True

    def files(self, repo_id, revision="main"):
        """Path to content, for a test to look at."""
        repository = self.repositories[repo_id]
        files = repository.commits[repository.sha(revision)]
        return {path: file.content for path, file in files.items()}

    def readable(self, request, repo_id):
        repository = self.repositories.get(repo_id)
        is_hidden = repository and repository.is_private and not request.is_known
        if repository is None or is_hidden or request.kind not in (None, repository.kind):
            status = 404 if request.is_known else 401
            raise HubError(status, "RepoNotFound", "Repository not found")
        return repository

    def writable(self, request, repo_id):
        request.check_known()
        return self.readable(request, repo_id)

    # --- accounts and repositories -------------------------------------------------------------

    def whoami(self, request):
        request.check_known()
        auth = {"type": "access_token", "accessToken": {"displayName": "test", "role": "write"}}
        return {"type": "user", "name": USER, "orgs": [], "auth": auth}

    def create(self, request):
        request.check_known()
        told = request.json()
        owner = told.get("organization") or USER
        repo_id = f"{owner}/{told['name']}"
        if owner != USER:
            raise HubError(403, message=f"You don't have the rights to create under {owner}")
        folder = "spaces/" if told.get("type") == "space" else ""
        answer = {"url": f"{self.endpoint}/{folder}{repo_id}", "name": repo_id}
        if repo_id in self.repositories:
            message = "You already created this model repo"
            raise HubError(409, message=message, body={**answer, "error": message})
        is_private = told.get("private") or told.get("visibility") == "private"
        kind, sdk = told.get("type") or "model", told.get("sdk")
        self.repositories[repo_id] = Repository(bool(is_private), kind, sdk)
        attributes = "".join(f"*{end} filter=lfs diff=lfs merge=lfs -text\n" for end in LARGE_FILES)
        first = {".gitattributes": File(attributes.encode(), is_large=False)}
        self.repositories[repo_id].commit("main", first)
        return answer

    def delete(self, request):
        told = request.json()
        repo_id = f"{told.get('organization') or USER}/{told['name']}"
        self.writable(request, repo_id)
        del self.repositories[repo_id]
        return {}

    def branch(self, request, repo_id, name):
        repository = self.writable(request, repo_id)
        if name in repository.branches:
            raise HubError(409, message=f"Reference already exists: {name}")
        start = (request.json() or {}).get("startingPoint") or "main"
        repository.branches[name] = repository.sha(start)
        return {}

    def validate_yaml(self, request):
        content = request.json()["content"]
        errors = [{"message": text} for text in card_errors(content)]
        if errors:
            raise HubError(400, message=errors[0]["message"], body={"errors": errors})
        return {"errors": [], "warnings": []}

    # --- writing -------------------------------------------------------------------------------

    def preupload(self, request, repo_id, revision):
        repository = self.writable(request, repo_id)
        present = repository.commits[repository.sha(revision)]

        def answer(path):
            is_large = path.endswith(LARGE_FILES)
            found = {"path": path, "uploadMode": "lfs" if is_large else "regular"}
            if path in present:
                found["oid"] = present[path].sha256 if is_large else present[path].oid
            return {**found, "shouldIgnore": False}

        return {"files": [answer(file["path"]) for file in request.json()["files"]]}

    def lfs_batch(self, request, repo_id):
        self.writable(request, repo_id)
        objects = request.json()["objects"]
        for item in objects:
            if item["oid"] not in self.uploads:
                href = f"{self.endpoint}/upload/{item['oid']}"
                item["actions"] = {"upload": {"href": href, "header": {}}}
        return {"transfer": "basic", "objects": objects}

    def upload(self, request, oid):
        if not self.takes_large_files:
            raise HubError(403, message="no room for large files")
        if hashlib.sha256(request.body).hexdigest() != oid:
            raise HubError(400, message="the content does not have the promised hash")
        self.uploads[oid] = request.body
        return {}

    def commit(self, request, repo_id, branch):
        repository = self.writable(request, repo_id)
        parent = repository.sha(branch)
        files = dict(repository.commits[parent])
        for line in request.body.splitlines():
            operation = json.loads(line)
            key, value = operation["key"], operation["value"]
            if key != "header":
                files = self.changed(files, key, value)
            elif value.get("parentCommit") not in (None, parent):
                raise HubError(412, message="A commit has happened since")
        sha = repository.commit(branch, files)
        return {"commitUrl": f"{self.endpoint}/{repo_id}/commit/{sha}", "commitOid": sha}

    def changed(self, files, key, value):
        """Files after one operation of a commit."""
        path = value["path"]
        if key == "file":
            content = base64.b64decode(value["content"], validate=True)
            return {**files, path: File(content, is_large=False)}
        if key == "lfsFile" and value["oid"] in self.uploads:
            return {**files, path: File(self.uploads[value["oid"]], is_large=True)}
        if key == "deletedFile" and path in files:
            return {name: file for name, file in files.items() if name != path}
        if key == "deletedFolder":
            gone = path.rstrip("/") + "/"
            return {name: file for name, file in files.items() if not name.startswith(gone)}
        raise HubError(400, message=f"cannot do {key} of {path}")

    # --- reading -------------------------------------------------------------------------------

    def info(self, request, repo_id, revision="main"):
        repository = self.readable(request, repo_id)
        sha = repository.sha(revision)
        return {
            "id": repo_id,
            "sha": sha,
            "private": repository.is_private,
            "lastModified": "2026-01-01T00:00:00.000Z",
            "tags": [],
            "siblings": [{"rfilename": path} for path in sorted(repository.commits[sha])],
        }

    def refs(self, request, repo_id):
        branches = self.readable(request, repo_id).branches.items()
        described = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": sha}
            for name, sha in branches
        ]
        return {"branches": described, "converts": [], "tags": []}

    def tree(self, request, repo_id, revision, folder=""):
        repository = self.readable(request, repo_id)
        sha = repository.sha(revision)
        files = repository.commits[sha]
        start = folder and folder.rstrip("/") + "/"
        below = {path: file for path, file in files.items() if path.startswith(start)}
        if not below:
            raise HubError(404, "EntryNotFound", f"{folder} does not exist on {revision}")
        is_deep = request.query.get("recursive", [""])[0].lower() in ("1", "true")
        found = [f.entry(p) for p, f in below.items() if is_deep or "/" not in p[len(start) :]]
        deeper = {p[len(start) :].split("/")[0] for p in below if "/" in p[len(start) :]}
        return found + [
            {
                "type": "directory",
                "path": start + name,
                "size": 0,
                "oid": hashlib.sha1().hexdigest(),
            }
            for name in sorted(deeper)
        ]

    def paths_info(self, request, repo_id, revision):
        repository = self.readable(request, repo_id)
        files = repository.commits[repository.sha(revision)]
        is_form = "json" not in request.headers.get("Content-Type", "")
        paths = parse_qs(request.body.decode()).get("paths", []) if is_form else None
        paths = request.json()["paths"] if paths is None else paths
        return [files[path].entry(path) for path in paths if path in files]

    def resolve(self, request, repo_id, revision, path):
        repository = self.readable(request, repo_id)
        sha = repository.sha(revision)
        request.answer_headers["X-Repo-Commit"] = sha
        file = repository.commits[sha].get(path)
        if file is None:
            raise HubError(404, "EntryNotFound", "Entry not found")
        request.answer_headers["ETag"] = f'"{file.sha256 if file.is_large else file.oid}"'
        if file.is_large:
            request.answer_headers["X-Linked-Etag"] = f'"{file.sha256}"'
            request.answer_headers["X-Linked-Size"] = str(len(file.content))
        return file.content


def card_errors(content):
    """What the Hub would not take in the metadata of a card."""
    found = re.match(r"\s*---\r?\n(.*?)\r?\n---", content, flags=re.DOTALL)
    if found is None:
        return []
    try:
        data = yaml.safe_load(found.group(1)) or {}
    except yaml.YAMLError as error:
        return [f"not YAML: {error}"]
    errors = [
        f'"{name}" must be {kind.__name__}'
        for name, kind in (("license", str), ("pipeline_tag", str), ("tags", list))
        if name in data and not isinstance(data[name], kind)
    ]
    for model in data.get("model-index", []):
        for result in model.get("results", ()) if "name" in model else [{}]:
            parts = (result.get("task"), result.get("dataset"), *result.get("metrics", [{}]))
            if not all(part and part.get("type") for part in parts):
                errors.append(
                    '"model-index" needs a name, and of each result task, dataset, metric'
                )
    return errors


ROUTES = [
    ("GET", r"/api/whoami-v2", Hub.whoami),
    ("POST", r"/api/repos/create", Hub.create),
    ("DELETE", r"/api/repos/delete", Hub.delete),
    ("POST", r"/api/validate-yaml", Hub.validate_yaml),
    ("POST", rf"/api/models/{REPO}/branch/{PART}", Hub.branch),
    ("POST", rf"/api/models/{REPO}/preupload/{PART}", Hub.preupload),
    ("POST", rf"/api/models/{REPO}/commit/{PART}", Hub.commit),
    ("POST", rf"/api/models/{REPO}/paths-info/{PART}", Hub.paths_info),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", Hub.lfs_batch),
    ("PUT", r"/upload/(\w{64})", Hub.upload),
    ("GET", rf"/api/models/{REPO}", Hub.info),
    ("GET", rf"/api/models/{REPO}/revision/{PART}", Hub.info),
    ("GET", rf"/api/models/{REPO}/refs", Hub.refs),
    ("GET", rf"/api/models/{REPO}/tree/{PART}(?:/(.+))?", Hub.tree),
    ("GET", rf"/{REPO}/resolve/{PART}/(.+)", Hub.resolve),
]


class Request(BaseHTTPRequestHandler):
    """One request: reads its body, finds its route, sends the answer."""

    protocol_version, timeout = "HTTP/1.1", 30

    @property
    def is_known(self):
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def check_known(self):
        if not self.is_known:
            raise HubError(401, message="Invalid username or password.")

    def json(self):
        return json.loads(self.body) if self.body else None

    def read_body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            length = int(self.headers.get("Content-Length") or 0)
            self.check_size(length)
            return self.rfile.read(length)
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            self.check_size(len(body) + size)
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def check_size(self, size):
        if size > LARGEST_BODY:
            self.close_connection = True
            raise HubError(413, message=f"{size} bytes are too many")

    def handle_request(self):
        self.answer_headers = {}
        try:
            self.body = self.read_body()
            with self.server.hub.lock:
                status, answer = 200, self.route()
        except HubError as error:
            status, answer = error.status, error.body or {"error": error.message}
            if error.code:
                self.answer_headers["X-Error-Code"] = error.code
            self.answer_headers["X-Error-Message"] = error.message
        if not isinstance(answer, bytes):
            self.answer_headers["Content-Type"] = "application/json"
            answer = json.dumps(answer).encode()
        self.send(status, answer)

    def route(self):
        address = urlsplit(self.path)
        self.query = parse_qs(address.query)
        method = "GET" if self.command == "HEAD" else self.command
        # the addresses of Spaces have another beginning; "/api/repos" and uploads are of both
        path = re.sub("^/api/spaces/", "/api/models/", re.sub("^/spaces/", "/", address.path))
        is_model = path.startswith("/api/models/")
        self.kind = "space" if path != address.path else "model" if is_model else None
        for wanted, pattern, action in ROUTES:
            found = re.fullmatch(pattern, path) if wanted == method else None
            if found:
                parts = [unquote(part) for part in found.groups() if part is not None]
                return action(self.server.hub, self, *parts)
        raise HubError(404, message=f"no such address: {method} {address.path}")

    def send(self, status, answer):
        total = len(answer)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and status == 200:
            first, last = int(wanted[1]), min(int(wanted[2] or total), total - 1)
            is_possible = first <= last
            status, answer = 206 if is_possible else 416, answer[first : last + 1]
            place = f"{first}-{last}" if is_possible else "*"
            self.answer_headers["Content-Range"] = f"bytes {place}/{total}"
        self.send_response(status)
        for name, value in {**self.answer_headers, "Content-Length": str(len(answer))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_request  # noqa: N815 - http.server's

    def log_message(self, *_):
        """Quiet."""


class HubServer:
    """A context manager: `with HubServer() as hub` listens, on a free port, until its end."""

    def __enter__(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
        hub = self._server.hub = Hub()
        hub.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.daemon = True
        self._thread.start()
        return hub

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)
