/* Eclipse Ditto's own client for Node against a gateway.
 *
 * node ditto_client.js <folder with node_modules> <host:port> <thing id> <label>
 *
 * Whoever started it answers messages and live commands on the thing, and acknowledges the label.
 * Prints one JSON object: what came of each step.
 */
'use strict';

const path = require('path');

const [, , folder, domain, thingId, label] = process.argv;
const ditto = require(
  path.join(folder, 'node_modules', '@eclipse-ditto', 'ditto-javascript-client-node'));

const DEADLINE_MS = 20000;
const results = {};

function within(what, promise) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no ${what} in time`)), DEADLINE_MS);
    promise.then(
      value => { clearTimeout(timer); resolve(value); },
      reason => { clearTimeout(timer); reject(reason); });
  });
}

/** A connected client: the promise of it. */
function connect(user, live) {
  return within(`connection of ${user}`, new Promise(resolve => {
    let client;
    const state = {
      connected: () => setImmediate(() => resolve(client)),
      buffering: () => {}, backPressure: () => {}, reconnecting: () => {}, bufferFull: () => {},
      disconnected: () => {},
    };
    const builder = ditto.DittoNodeClient.newWebSocketClient()
      .withoutTls()
      .withDomain(domain)
      .withAuthProvider(ditto.NodeWebSocketBasicAuth.newInstance(user, user));
    const stateful = builder.withoutBuffer().withReconnect(false).withStateHandler(state);
    client = (live ? stateful.liveChannel() : stateful.twinChannel()).build();
  }));
}

/** The first thing that is given to the callback of `subscribe`. */
function first(what, subscribe) {
  return within(what, new Promise(resolve => { subscribe(resolve); }));
}

async function refused(promise) {
  try {
    await promise;
  } catch (problem) {
    return problem;
  }
  throw new Error('it was not refused');
}

async function things(client, watcher) {
  const handle = client.getThingsHandle();
  const thing = new ditto.Thing(thingId, undefined, { colour: 'warm' });
  const put = await within('answer to put', handle.putThing(thing));
  results.put = { status: put.status, thingId: put.body.thingId };
  results.conflict = await refused(handle.createThing(thing));
  results.get = await handle.getThing(thingId).then(found => found.toObject());
  results.missing = await refused(handle.getAttribute(thingId, 'size'));

  const events = watcher.getEventsHandle();
  await within('ack of events', events.requestEvents());
  const event = first('event', seen => events.subscribeToAttribute(thingId, 'colour', seen));
  results.modify = (await handle.putAttribute(thingId, 'colour', 'cold')).status;
  results.event = await event;

  const patch = new ditto.Thing(thingId, undefined, { on: true });
  results.patch = (await handle.patchThing(patch)).status;
  const features = client.getFeaturesHandle(thingId);
  await features.putFeature(new ditto.Feature('lamp', undefined, { power: 7 }));
  results.property = await features.getProperty('lamp', 'power');
  const stale = ditto.DefaultMatchOptions.getInstance().ifMatch(['"rev:1"']);
  results.precondition = await refused(handle.deleteThing(thingId, stale));
  await events.stopEvents();
}

async function acks(client) {
  const requestOptions = ditto.DefaultMatchOptions.getInstance()
    .addHeader('requested-acks', JSON.stringify(['twin-persisted', label]))
    .addHeader('timeout', '10s');
  // The client's putAttribute() takes 201 and 204 only; what it is built on takes every answer.
  const sender = client.getThingsHandle().requestFactory;
  const both = await within('acks', sender.fetchRequest({
    verb: 'PUT', id: thingId, path: 'attributes/colour', payload: 'blue', requestOptions,
  }));
  results.acks = { status: both.status, headers: [...both.headers.keys()], body: both.body };
}

async function messages(client) {
  const handle = client.getMessagesHandle();
  const answer = await within('answer to a message', handle.messageToThing(
    thingId, 'ask', 'how are you?', 'text/plain'));
  results.message = { status: answer.status, body: answer.body };
  const json = await within('answer to JSON', handle.messageFromFeature(
    thingId, 'lamp', 'report', { power: 7 }, 'application/json'));
  results.json = { status: json.status, body: json.body };
  const claimed = await within('answer to a claim', handle.claim(thingId, 'secret'));
  results.claim = claimed.status;
}

async function incoming(client, watcher) {
  const inbox = watcher.getMessagesHandle();
  await within('ack of messages', inbox.requestMessages());
  const message = first('message', seen => inbox.subscribeToThing(thingId, seen, 'tell', 'inbox'));
  await client.getMessagesHandle().messageToThingWithoutResponse(
    thingId, 'tell', 'something', 'text/plain');
  results.received = await message;
}

async function live(client, watcher) {
  const commands = watcher.getCommandsHandle();
  await within('ack of commands', commands.requestCommands());
  const command = first('command', seen => commands.subscribeToAllCommands(seen));
  const response = await within('answer to a live command',
    client.getThingsHandle().putAttribute(thingId, 'colour', 'green'));
  results.live = { status: response.status, command: await command };
}

async function main() {
  const client = await connect('ditto', false);
  const watcher = await connect('ditto', false);
  const device = await connect('ditto', true);
  const caller = await connect('ditto', true);
  await things(client, watcher);
  await acks(client);
  await messages(caller);
  await incoming(caller, device);
  await live(caller, device);
  results.deleted = (await client.getThingsHandle().deleteThing(thingId)).status;
  console.log(JSON.stringify(results));
  for (const one of [client, watcher, device, caller]) {
    one.close(1000, 'done');
  }
}

main().then(() => process.exit(0), problem => {
  console.error(problem);
  console.log(JSON.stringify(results));
  process.exit(1);
});
