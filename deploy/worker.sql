-- For compose.yaml: the role of workers, before `tilewright fleet init` gives it its rights.
\set password `cat /run/secrets/worker`
CREATE ROLE tilewright_worker LOGIN PASSWORD :'password';
