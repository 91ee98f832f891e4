//! Files of `deploy/`: they match the schemas of Kubernetes and of the compose specification, and their commands run. The schemas are those of
//! Python packages in the folder that `TILEWRIGHT_SCHEMAS` names; without it these tests say SKIPPED.

use crate::common::{Bench, Ran, missing};
use crate::fleet::{CASES, postgres, postgres::Postgres};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const COMPOSE: &str = include_str!("../../../../deploy/compose.yaml");
const KUBERNETES: &str = include_str!("../../../../deploy/kubernetes.yaml");
const WORKER: &str = include_str!("../../../../deploy/worker.sql");

/// The folder of the packages with schemas.
fn schemas() -> Option<PathBuf> {
    let folder = std::env::var_os("TILEWRIGHT_SCHEMAS").map(PathBuf::from).filter(|folder| folder.is_dir());
    if folder.is_none() {
        missing::missing(
            "schemas of Kubernetes and compose (TILEWRIGHT_SCHEMAS: a folder with kubernetes-validate and docker-compose)",
        );
    }
    folder
}

/// Checks a text against its schema; its documents are printed as JSON.
fn checked(bench: &Bench, schemas: &Path, text: &str) -> Ran {
    let file = bench.path("file.yaml");
    std::fs::write(&file, text).expect("a file");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/command/schemas.py");
    let mut python = Command::new("python3");
    let out = python.arg(script).arg(&file).env("PYTHONPATH", schemas).env("PYTHONDONTWRITEBYTECODE", "1").output();
    Ran::new("schemas.py", out.expect("python3 runs"))
}

fn document(bench: &Bench, schemas: &Path, text: &str) -> Value {
    let ran = checked(bench, schemas, text);
    ran.ends(0);
    ran.objects().remove(0)
}

fn words(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().map(|word| word.as_str().expect("a word")).collect()
}

/// The built command comes first in the path.
pub fn path() -> String {
    let tool = Path::new(env!("CARGO_BIN_EXE_tilewright")).parent().expect("a folder");
    format!("{}:{}", tool.display(), std::env::var("PATH").unwrap_or_default())
}

pub fn files_that_leave_their_schema_are_refused() {
    let Some(schemas) = schemas() else { return };
    let bench = Bench::new();
    for (text, right, wrong) in [
        (KUBERNETES, "completions: 8", "completion: 8"),
        (KUBERNETES, "parallelism: 8", "parallelism: eight"),
        (KUBERNETES, "secretKeyRef: {name", "secretKeyRef: {called"),
        (KUBERNETES, "kind: Job\n", "kind: Job\nspecs: {}\n"),
        (COMPOSE, "depends_on:", "depend_on:"),
        (COMPOSE, "service_healthy", "service_well"),
        (COMPOSE, "capabilities: [gpu]", "capability: [gpu]"),
    ] {
        assert!(text.contains(right), "{right}");
        let ran = checked(&bench, &schemas, &text.replacen(right, wrong, 1));
        ran.ends(1);
        assert!(ran.err.contains("refused:"), "{wrong}: {}", ran.err);
    }
}

/// The command of the Job is complete but for its server, and its password is a secret.
pub fn the_job_for_kubernetes_starts_a_worker() {
    let Some(schemas) = schemas() else { return };
    let bench = Bench::new();
    let authority = bench.text("ca.crt");
    let line = format!("req -x509 -newkey rsa:2048 -nodes -subj /CN=fleet-db -keyout {} -out {authority}", bench.text("key"));
    let Ok(made) = Command::new("openssl").args(line.split(' ')).output() else {
        return missing::missing("openssl is not installed");
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::write(bench.path("shapes.csv"), CASES).expect("a file");
    let job = document(&bench, &schemas, KUBERNETES);
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(words(&container["command"]), ["tilewright"]);
    let line = words(&container["args"]).join(" ").replace("/cases/shapes.csv", &bench.text("shapes.csv"));
    let mut command = bench.command(&line);
    let mut secrets = 0;
    for variable in container["env"].as_array().expect("variables") {
        let name = variable["name"].as_str().expect("a name");
        if variable["valueFrom"]["secretKeyRef"]["key"].is_string() {
            secrets += 1;
            command.env(name, "hunter2");
        } else if name == "TILEWRIGHT_FLEET" {
            let url = variable["value"].as_str().expect("a value");
            assert!(!url.contains("sslmode"), "the certificate is verified: {url}");
            command.env(name, url.replace("fleet-db", "localhost:1").replace("/fleet/ca.crt", &authority));
        } else {
            assert!(!name.contains("PASS"), "{name} is no secret");
        }
    }
    assert_eq!(secrets, 1);
    let ran = Ran::new(&line, command.output().expect("it runs"));
    ran.ends(1);
    assert!(ran.err.contains("cannot be reached") && !ran.err.contains("hunter2"), "{}", ran.err);
}

/// The services of the compose file in their order, without docker: a server, then each command with the file's environment and secrets.
pub fn the_services_of_compose_tune_and_collect() {
    let Some(schemas) = schemas() else { return };
    if postgres::programs().is_none() {
        return missing::missing("PostgreSQL is not installed (Debian: postgresql)");
    }
    let bench = Bench::new();
    let compose = document(&bench, &schemas, COMPOSE);
    let services = compose["services"].as_object().expect("services");
    for (name, service) in services {
        let secrets = service["secrets"].as_array().expect("each service has secrets");
        assert!(secrets.iter().all(|secret| compose["secrets"][secret.as_str().expect("a name")].is_object()), "{name}");
        let before = service["depends_on"].as_object().into_iter().flatten();
        before.for_each(|(other, _)| assert!(services.contains_key(other), "{name} waits for {other}"));
    }
    let Some(server) = Postgres::start() else { return };
    for folder in ["secrets", "found"] {
        std::fs::create_dir(bench.path(folder)).expect("a folder");
    }
    std::fs::write(bench.path("secrets/owner"), format!("{}\n", postgres::PASSWORD)).expect("a file");
    std::fs::write(bench.path("secrets/worker"), "battery-staple\n").expect("a file");
    std::fs::write(bench.path("shapes.csv"), CASES).expect("a file");
    let places = [
        ("/run/secrets", bench.text("secrets")),
        ("/cases/shapes.csv", bench.text("shapes.csv")),
        ("/found", bench.text("found")),
        ("--device all --budget 30s", "--device emu --budget 2".into()),
        ("@server/", format!("@127.0.0.1:{}/", server.port)),
        ("$$", "$".into()),
    ];
    let here = |text: &str| places.iter().fold(text.to_string(), |text, (there, here)| text.replace(there, here));
    std::fs::write(bench.path("worker.sql"), here(WORKER)).expect("a file");
    let mut psql = server.command("psql");
    let made = psql.args(["-d", "fleet", "-v", "ON_ERROR_STOP=1", "-f"]).arg(bench.path("worker.sql")).output();
    Ran::new("worker.sql", made.expect("psql runs")).ends(0);
    let run = |name: &str| -> Ran {
        let service = &services[name];
        let words = words(&service["command"]);
        let mut command = Command::new(words[0]);
        command.args(words[1..].iter().map(|word| here(word))).current_dir(bench.folder.path());
        command.env("PATH", path()).env("TILEWRIGHT_RECORDS", bench.path("records.sqlite"));
        command.env("TILEWRIGHT_CACHE", bench.path("cache")).env_remove("PGPASSFILE");
        for (variable, value) in service["environment"].as_object().expect("variables") {
            command.env(variable, here(value.as_str().expect("a text")));
        }
        Ran::new(name, command.output().expect("it runs"))
    };
    // The worker's role has no tables yet.
    assert_eq!(run("status").code, Some(1));
    let tables = run("tables");
    tables.ends(0);
    tables.says(&["the tables are made"]);
    run("worker").ends(0);
    let status = run("status");
    status.ends(0);
    status.says(&["0 open, 0 leased, 4 done, 0 failed"]);
    run("pull").ends(0);
    let pulled = bench.run(&format!("records list --json --records {}", bench.text("found/night.sqlite")));
    assert_eq!(pulled.objects().len(), 4, "{}", pulled.out);
}
