const objects = new Map();
let token = "";
const key = ({ kind, metadata }) => `${kind}/${metadata.namespace ?? ""}/${metadata.name}`;

function connect() {
  if (!token) objects.clear();
  const source = new EventSource("http://localhost:8090/v1/watch/pods" + (token && `?resume=${token}`));
  const on = (type, apply) => source.addEventListener(type, ({ data, lastEventId }) => {
    token = lastEventId;
    apply(JSON.parse(data).object);
  });
  for (const type of ["ADDED", "MODIFIED"]) on(type, (object) => objects.set(key(object), object));
  on("DELETED", (object) => objects.delete(key(object)));
  on("RESET", () => objects.clear());
  for (const type of ["SYNCED", "BOOKMARK"]) on(type, () => console.log(objects.size, "objects at", token));
  // An EventSource reconnects by itself after a lost connection, but not after an error answer.
  source.onerror = () => source.readyState === EventSource.CLOSED && setTimeout(connect, 1000);
}
connect();
