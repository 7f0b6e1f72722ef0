\set n :n + 1
INSERT INTO ledger (client, n) VALUES (:client_id, :n);
\sleep 4 ms
