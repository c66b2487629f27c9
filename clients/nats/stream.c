/* See stream.h. Only the leader is asked ($JS.API.STREAM.MSG.GET): another replica may be behind.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../protocol/decode.h"
#include "../c/command/command.h"
#include "stream.h"
#include "server.h"

#define WAIT_MS 2000

static int fail(struct stream *stream, natsStatus status, jsErrCode code)
{
	if (code == JSStreamNotFoundErr)
		snprintf(stream->reason, sizeof(stream->reason),
			 "there is no stream %s; `coretap-nats setup --stream %s` makes it",
			 stream->name, stream->name);
	else
		snprintf(stream->reason, sizeof(stream->reason), "stream %s: %s", stream->name,
			 server_error(status, code));
	return status == NATS_NO_MEMORY ? -ENOMEM : -EAGAIN;
}

bool stream_name_check(const char *what, const char *name)
{
	size_t length = strcspn(name, " \t\r\n\f.*>/\\");

	if (length && !name[length])
		return true;
	complain("%s %s: not the name of a stream, which has no blanks and none of . * > / \\",
		 what, name);
	return false;
}

int stream_open(struct stream *stream, natsConnection *connection, const char *name)
{
	int64_t max_payload = natsConnection_GetMaxPayload(connection);
	jsStreamInfo *info = NULL;
	jsOptions options;
	jsErrCode code = 0;
	natsStatus status;
	int err = 0;

	*stream = (struct stream){ .name = name };
	jsOptions_Init(&options);
	options.Wait = WAIT_MS;
	status = natsConnection_JetStream(&stream->js, connection, &options);
	if (status == NATS_OK)
		status = js_GetStreamInfo(&info, stream->js, name, NULL, &code);
	if (status != NATS_OK)
		return fail(stream, status, code);
	stream->last = info->State.LastSeq;
	stream->max_message = max_payload > 0 ? (size_t)max_payload : SIZE_MAX;
	if (info->Config->MaxMsgSize >= 0 && (size_t)info->Config->MaxMsgSize < stream->max_message)
		stream->max_message = (size_t)info->Config->MaxMsgSize;
	if (stream->max_message < STREAM_LEAST_MESSAGE) {
		snprintf(stream->reason, sizeof(stream->reason),
			 "stream %s: takes messages of up to %zu bytes; a status needs %d: raise "
			 "max_payload of the servers, or `coretap-nats setup --max-message`",
			 name, stream->max_message, STREAM_LEAST_MESSAGE);
		err = -EINVAL;
	}
	if (info->Config->Retention != js_LimitsPolicy || info->Config->NoAck ||
	    info->Config->Sealed || info->Config->Mirror || info->Config->SourcesLen) {
		snprintf(stream->reason, sizeof(stream->reason),
			 "stream %s: must acknowledge, keep messages by limits only, and have no "
			 "other source; `coretap-nats setup` makes such a one",
			 name);
		err = -EINVAL;
	}
	jsStreamInfo_Destroy(info);
	return err;
}

void stream_close(struct stream *stream)
{
	jsCtx_Destroy(stream->js);
	stream->js = NULL;
}

/* ---- what the stream has of a node ---- */

static int take_status(struct position *position, natsMsg *msg, char reason[DECODE_REASON])
{
	struct status_body status;
	struct item topic, head;
	struct place *place;
	struct cursor heads;

	if (decode_status(natsMsg_GetData(msg), (size_t)natsMsg_GetDataLength(msg), &status,
			  reason))
		return 0; /* not ours */
	place = &position->sockets[status.socket];
	if (!place_enter(place, status.run))
		return 0;
	place_reach(place, status.n);
	if (status.n > place->sure)
		place->sure = status.n;
	heads = status.heads;
	while (cursor_pair(&heads, &topic, &head))
		if (topic.kind == ITEM_TEXT && head.kind == ITEM_UINT &&
		    !place_topic(place, (const char *)topic.data, topic.length, head.number + 1))
			return -ENOMEM;
	return 0;
}

/* Returns whether it is there, or -ENOMEM: headers are parsed when they are asked for. */
static int get_header(natsMsg *msg, const char *name, const char **text)
{
	natsStatus status = natsMsgHeader_Get(msg, name, text);

	return status == NATS_NO_MEMORY ? -ENOMEM : status == NATS_OK;
}

static int origin_socket(natsMsg *msg, enum socket_id *socket)
{
	const char *origin;
	int got = get_header(msg, HEADER_ORIGIN, &origin);

	if (got != 1)
		return got;
	for (int i = 0; i < N_SOCKETS; i++) {
		size_t length = strlen(socket_name((enum socket_id)i));

		*socket = (enum socket_id)i;
		if (!strncmp(origin, socket_name(*socket), length) && origin[length] == ' ')
			return 1;
	}
	return 0;
}

static int take_message(struct position *position, const char *topic, natsMsg *msg,
			char reason[DECODE_REASON])
{
	struct message_body message;
	enum socket_id socket;
	struct place *place;
	int got = origin_socket(msg, &socket);

	if (got != 1 || decode_message(natsMsg_GetData(msg), (size_t)natsMsg_GetDataLength(msg),
				       NULL, &message, reason))
		return got == 1 ? 0 : got;
	place = &position->sockets[socket];
	if (!place_enter(place, message.run))
		return 0;
	place_reach(place, message.n + message.events.left - 1);
	return place_topic(place, topic, strlen(topic), message.next) ? 0 : -ENOMEM;
}

static uint64_t get_uint(const struct item *map, const char *name)
{
	struct cursor hint = item_elements(map);
	struct item value;

	decode_field(map, &hint, name, strlen(name), &value);
	return value.kind == ITEM_UINT ? value.number : 0;
}

/* What is missing for good was told already. */
static int take_gap(struct position *position, const char *topic, natsMsg *msg,
		    char reason[DECODE_REASON])
{
	const void *body = natsMsg_GetData(msg);
	enum socket_id socket;
	struct place *place;
	struct item map;
	int got = origin_socket(msg, &socket);

	if (got != 1 || decode_check(body, (size_t)natsMsg_GetDataLength(msg), reason))
		return got == 1 ? 0 : got;
	decode_item(body, &map);
	if (map.kind != ITEM_MAP)
		return 0;
	place = &position->sockets[socket];
	if (!place_enter(place, get_uint(&map, "run")))
		return 0;
	return place_topic(place, topic, strlen(topic), get_uint(&map, "last") + 1) ? 0 : -ENOMEM;
}

/* The last status of the other socket, which has the same subject. */
static int take_other_status(struct stream *stream, struct position *position, natsMsg *msg,
			     char reason[DECODE_REASON])
{
	const char *header;
	uint64_t sequence;
	natsMsg *other = NULL;
	jsErrCode code = 0;
	natsStatus status;
	int err = get_header(msg, HEADER_STATUS, &header);

	sequence = err == 1 ? strtoull(header, NULL, 10) : 0;
	if (!sequence)
		return err == 1 ? 0 : err;
	status = js_GetMsg(&other, stream->js, stream->name, sequence, NULL, &code);
	if (code == JSNoMessageFoundErr)
		return 0; /* it has aged out: then the messages alone must tell */
	if (status != NATS_OK)
		return fail(stream, status, code);
	err = take_status(position, other, reason);
	natsMsg_Destroy(other);
	return err;
}

static int take_last(struct stream *stream, const char *subject, const char *topic,
		     struct position *position)
{
	char reason[DECODE_REASON];
	natsMsg *msg = NULL;
	jsErrCode code = 0;
	natsStatus status;
	int err;

	status = js_GetLastMsg(&msg, stream->js, stream->name, subject, NULL, &code);
	if (code == JSNoMessageFoundErr)
		return 0; /* has just aged out */
	if (status != NATS_OK)
		return fail(stream, status, code);
	if (!strcmp(topic, TOPIC_STATUS) || !strcmp(topic, TOPIC_STOPPING)) {
		err = take_status(position, msg, reason);
		if (!err)
			err = take_other_status(stream, position, msg, reason);
	} else if (!strncmp(topic, TOPIC_GAP, strlen(TOPIC_GAP))) {
		err = take_gap(position, topic + strlen(TOPIC_GAP), msg, reason);
	} else {
		err = take_message(position, topic, msg, reason);
	}
	natsMsg_Destroy(msg);
	return err;
}

int stream_position(struct stream *stream, const char *label, struct position *position)
{
	char filter[MAX_SUBJECT];
	int prefix = snprintf(filter, sizeof(filter), SUBJECT_PREFIX "%s.>", label) - 1;
	jsStreamStateSubjects *subjects;
	jsStreamInfo *info = NULL;
	jsOptions options;
	jsErrCode code = 0;
	natsStatus status;
	int err = 0;

	jsOptions_Init(&options);
	options.Wait = WAIT_MS;
	options.Stream.Info.SubjectsFilter = filter;
	status = js_GetStreamInfo(&info, stream->js, stream->name, &options, &code);
	if (status != NATS_OK)
		return fail(stream, status, code);
	subjects = info->State.Subjects;
	for (int i = 0; subjects && i < subjects->Count && !err; i++)
		err = take_last(stream, subjects->List[i].Subject,
				subjects->List[i].Subject + prefix, position);
	jsStreamInfo_Destroy(info);
	if (err == -ENOMEM)
		snprintf(stream->reason, sizeof(stream->reason), "stream %s: out of memory",
			 stream->name);
	return err;
}

int stream_ends(struct stream *stream, uint64_t *last)
{
	jsStreamInfo *info = NULL;
	jsErrCode code = 0;
	natsStatus status = js_GetStreamInfo(&info, stream->js, stream->name, NULL, &code);

	if (status != NATS_OK)
		return fail(stream, status, code);
	*last = info->State.LastSeq;
	jsStreamInfo_Destroy(info);
	return 0;
}

/* Gets the last message. Returns 1, 0: it is there no more, or a negative errno value. */
static int get_end(struct stream *stream, natsMsg **msg)
{
	jsErrCode code = 0;
	natsStatus status = js_GetMsg(msg, stream->js, stream->name, stream->last, NULL, &code);

	if (code == JSNoMessageFoundErr)
		return 0;
	return status == NATS_OK ? 1 : fail(stream, status, code);
}

int stream_has_other_writer(struct stream *stream, const char *writer)
{
	natsMsg *msg = NULL;
	const char *origin, *other = NULL;
	int found;

	if (!stream->last)
		return 0;
	found = get_end(stream, &msg);
	if (found != 1)
		return found ? found : 1; /* purged, or aged out: whose it was is unknown */
	found = get_header(msg, HEADER_ORIGIN, &origin);
	if (found == 1)
		other = strchr(origin, ' ');
	if (found >= 0)
		found = !other || strcmp(other + 1, writer);
	else
		fail(stream, NATS_NO_MEMORY, 0);
	natsMsg_Destroy(msg);
	return found;
}

int stream_ends_with(struct stream *stream, const char *id)
{
	natsMsg *msg = NULL;
	const char *text;
	int found = get_end(stream, &msg);

	if (found != 1)
		return found;
	found = get_header(msg, "Nats-Msg-Id", &text);
	if (found == 1)
		found = !strcmp(text, id);
	else if (found < 0)
		fail(stream, NATS_NO_MEMORY, 0);
	natsMsg_Destroy(msg);
	return found;
}
