/* Preloaded: makes one call of a class fail, so that a test can make each of them fail in turn.
 *
 *   INJECT=CLASS:N       the N-th call of this class fails and does nothing
 *   INJECT=NAME:N        the same for the calls of one function
 *   INJECT=all:0         none fails: every call is told
 *   INJECT_LOG=FILE      gets "failed NAME OFFSET...", the places of the call and of the calls that
 *                        led to it, in the executable; or for each call "call CLASS N NAME
 * OFFSET..." INJECT_CLOCK=FILE    the wall clock is ahead by as many seconds as FILE says
 *
 * Only calls from the executable count, not those of libraries among themselves: each of those has
 * its own manners, and libzmq's is to abort. System calls of libbpf count, though: that is how the
 * kernel says no. The stubs know nothing of what they stand for but its name, so they are in
 * assembly: all arguments pass through untouched, as many as there may be. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <lmdb.h>
#if __has_include(<nats/nats.h>)
#include <nats/nats.h>
#endif
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How a function tells that it failed. */
enum manner {
	NOTHING,      /* returns NULL or 0; errno says why */
	MINUS_ONE,    /* errno says why */
	THE_ERROR,    /* returns the error */
	ITS_NEGATIVE, /* returns -error, as libbpf does; errno says it too */
};

#ifdef NATS_VERSION_MAJOR
#define NATS_FUNCTIONS(F)                                                     \
	F(nats, natsOptions_Create, THE_ERROR, NATS_NO_MEMORY)                \
	F(nats, natsOptions_SetURL, THE_ERROR, NATS_NO_MEMORY)                \
	F(nats, natsOptions_SetAllowReconnect, THE_ERROR, NATS_INVALID_ARG)   \
	F(nats, natsOptions_SetTimeout, THE_ERROR, NATS_INVALID_ARG)          \
	F(nats, natsOptions_SetWriteDeadline, THE_ERROR, NATS_INVALID_ARG)    \
	F(nats, natsOptions_SetPingInterval, THE_ERROR, NATS_INVALID_ARG)     \
	F(nats, natsOptions_SetSendAsap, THE_ERROR, NATS_INVALID_ARG)         \
	F(nats, natsOptions_SetName, THE_ERROR, NATS_NO_MEMORY)               \
	F(nats, natsConnection_Connect, THE_ERROR, NATS_NO_SERVER)            \
	F(nats, natsConnection_JetStream, THE_ERROR, NATS_NO_MEMORY)          \
	F(nats, natsConnection_Subscribe, THE_ERROR, NATS_NO_MEMORY)          \
	F(nats, natsConnection_PublishMsg, THE_ERROR, NATS_STALE_CONNECTION)  \
	F(nats, natsInbox_Create, THE_ERROR, NATS_NO_MEMORY)                  \
	F(nats, natsMsg_Create, THE_ERROR, NATS_NO_MEMORY)                    \
	F(nats, natsMsgHeader_Get, THE_ERROR, NATS_NO_MEMORY)                 \
	F(nats, natsMsgHeader_Set, THE_ERROR, NATS_NO_MEMORY)                 \
	F(nats, natsSubscription_NextMsg, THE_ERROR, NATS_NO_MEMORY)          \
	F(nats, natsSubscription_SetOnCompleteCB, THE_ERROR, NATS_NO_MEMORY)  \
	F(nats, natsSubscription_SetPendingLimits, THE_ERROR, NATS_NO_MEMORY) \
	F(nats, js_AddStream, THE_ERROR, NATS_STALE_CONNECTION)               \
	F(nats, js_UpdateStream, THE_ERROR, NATS_STALE_CONNECTION)            \
	F(nats, js_GetStreamInfo, THE_ERROR, NATS_STALE_CONNECTION)           \
	F(nats, js_GetMsg, THE_ERROR, NATS_STALE_CONNECTION)                  \
	F(nats, js_GetLastMsg, THE_ERROR, NATS_STALE_CONNECTION)              \
	F(nats, js_SubscribeSync, THE_ERROR, NATS_STALE_CONNECTION)
#else
#define NATS_FUNCTIONS(F) /* then there is no coretap-nats either */
#endif

/* class, function, manner, error */
#define FUNCTIONS(F)                                               \
	F(alloc, malloc, NOTHING, ENOMEM)                          \
	F(alloc, calloc, NOTHING, ENOMEM)                          \
	F(alloc, realloc, NOTHING, ENOMEM)                         \
	F(alloc, strdup, NOTHING, ENOMEM)                          \
	F(alloc, strndup, NOTHING, ENOMEM)                         \
	F(alloc, reallocarray, NOTHING, ENOMEM)                    \
	F(alloc, asprintf, MINUS_ONE, ENOMEM)                      \
	F(alloc, open_memstream, NOTHING, ENOMEM)                  \
	F(lmdb, mdb_env_create, THE_ERROR, ENOMEM)                 \
	F(lmdb, mdb_env_open, THE_ERROR, EACCES)                   \
	F(lmdb, mdb_env_info, THE_ERROR, EINVAL)                   \
	F(lmdb, mdb_env_stat, THE_ERROR, EINVAL)                   \
	F(lmdb, mdb_env_set_mapsize, THE_ERROR, EINVAL)            \
	F(lmdb, mdb_env_set_maxdbs, THE_ERROR, EINVAL)             \
	F(lmdb, mdb_txn_begin, THE_ERROR, ENOMEM)                  \
	F(lmdb, mdb_txn_commit, THE_ERROR, EIO)                    \
	F(lmdb, mdb_dbi_open, THE_ERROR, MDB_DBS_FULL)             \
	F(lmdb, mdb_stat, THE_ERROR, EINVAL)                       \
	F(lmdb, mdb_del, THE_ERROR, EIO)                           \
	F(lmdb, mdb_put, THE_ERROR, EIO)                           \
	F(lmdb, mdb_drop, THE_ERROR, EIO)                          \
	F(lmdb, mdb_cursor_open, THE_ERROR, ENOMEM)                \
	F(lmdb, mdb_cursor_get, THE_ERROR, MDB_CORRUPTED)          \
	F(lmdb, mdb_cursor_del, THE_ERROR, EIO)                    \
	F(zmq, zmq_ctx_new, NOTHING, EMFILE)                       \
	F(zmq, zmq_socket, NOTHING, EMFILE)                        \
	F(zmq, zmq_bind, MINUS_ONE, EADDRNOTAVAIL)                 \
	F(zmq, zmq_connect, MINUS_ONE, ENOMEM)                     \
	F(zmq, zmq_setsockopt, MINUS_ONE, EINVAL)                  \
	F(zmq, zmq_getsockopt, MINUS_ONE, EINTR)                   \
	F(zmq, zmq_poll, MINUS_ONE, EINTR)                         \
	F(zmq, zmq_send, MINUS_ONE, EINTR)                         \
	F(zmq, zmq_send_const, MINUS_ONE, EINTR)                   \
	F(zmq, zmq_recv, MINUS_ONE, EINTR)                         \
	F(zmq, zmq_msg_send, MINUS_ONE, EINTR)                     \
	F(zmq, zmq_msg_recv, MINUS_ONE, EINTR)                     \
	F(zmq, zmq_msg_init_size, MINUS_ONE, ENOMEM)               \
	F(zmq, zmq_msg_init_data, MINUS_ONE, ENOMEM)               \
	F(zmq, zmq_curve_keypair, MINUS_ONE, ENOTSUP)              \
	F(zmq, zmq_disconnect, MINUS_ONE, ENOENT)                  \
	F(zmq, zmq_ctx_term, MINUS_ONE, EINTR)                     \
	F(zmq, zmq_socket_monitor, MINUS_ONE, EMFILE)              \
	F(bpf, syscall, MINUS_ONE, EINVAL)                         \
	F(libbpf, bpf_object__open_skeleton, ITS_NEGATIVE, ENOMEM) \
	F(libbpf, bpf_object__load_skeleton, ITS_NEGATIVE, ENOMEM) \
	F(libbpf, bpf_prog_load, ITS_NEGATIVE, EPERM)              \
	F(libbpf, bpf_map_update_elem, ITS_NEGATIVE, E2BIG)        \
	F(libbpf, bpf_map_delete_elem, ITS_NEGATIVE, EINVAL)       \
	F(libbpf, bpf_map_get_next_key, ITS_NEGATIVE, EINVAL)      \
	F(libbpf, bpf_obj_pin, ITS_NEGATIVE, EPERM)                \
	F(libbpf, bpf_obj_get, ITS_NEGATIVE, EPERM)                \
	F(libbpf, bpf_obj_get_info_by_fd, ITS_NEGATIVE, EFAULT)    \
	F(libbpf, bpf_link_create, ITS_NEGATIVE, EINVAL)           \
	F(libbpf, libbpf_probe_bpf_helper, ITS_NEGATIVE, EPERM)    \
	F(elf, elf_begin, NOTHING, ENOMEM)                         \
	F(elf, elf_getscn, NOTHING, EINVAL)                        \
	F(elf, elf64_getehdr, NOTHING, EINVAL)                     \
	F(elf, elf64_getphdr, NOTHING, EINVAL)                     \
	F(elf, elf64_getshdr, NOTHING, EINVAL)                     \
	F(elf, elf_nextscn, NOTHING, EINVAL)                       \
	F(elf, elf_getdata, NOTHING, ENOMEM)                       \
	F(elf, elf_getdata_rawchunk, NOTHING, ENOMEM)              \
	F(elf, elf_strptr, NOTHING, EINVAL)                        \
	F(elf, elf_getphdrnum, MINUS_ONE, EINVAL)                  \
	F(elf, elf_getshdrnum, MINUS_ONE, EINVAL)                  \
	F(elf, elf_getshdrstrndx, MINUS_ONE, EINVAL)               \
	F(file, open, MINUS_ONE, EMFILE)                           \
	F(file, openat, MINUS_ONE, EMFILE)                         \
	F(file, fopen, NOTHING, EMFILE)                            \
	F(file, fdopen, NOTHING, ENOMEM)                           \
	F(file, opendir, NOTHING, EMFILE)                          \
	F(file, readdir, NOTHING, EBADF)                           \
	F(file, stat, MINUS_ONE, EACCES)                           \
	F(file, lstat, MINUS_ONE, EACCES)                          \
	F(file, fstat, MINUS_ONE, EIO)                             \
	F(file, statvfs, MINUS_ONE, EIO)                           \
	F(file, access, MINUS_ONE, EIO)                            \
	F(file, readlink, MINUS_ONE, EACCES)                       \
	F(file, realpath, NOTHING, EACCES)                         \
	F(file, read, MINUS_ONE, EIO)                              \
	F(file, pread, MINUS_ONE, EIO)                             \
	F(file, write, MINUS_ONE, ENOSPC)                          \
	F(file, pwrite, MINUS_ONE, ENOSPC)                         \
	F(file, fflush, MINUS_ONE, ENOSPC)                         \
	F(file, fsync, MINUS_ONE, EIO)                             \
	F(file, posix_fallocate, THE_ERROR, ENOSPC)                \
	F(file, rename, MINUS_ONE, EACCES)                         \
	F(file, unlink, MINUS_ONE, EBUSY)                          \
	F(file, symlink, MINUS_ONE, ENOSPC)                        \
	F(file, unlinkat, MINUS_ONE, EBUSY)                        \
	F(file, rmdir, MINUS_ONE, EBUSY)                           \
	F(file, mkdir, MINUS_ONE, ENOSPC)                          \
	F(file, flock, MINUS_ONE, ENOLCK)                          \
	F(file, fcntl, MINUS_ONE, EMFILE)                          \
	F(file, mmap, MINUS_ONE, ENOMEM)                           \
	F(file, lchown, MINUS_ONE, EPERM)                          \
	F(file, fchown, MINUS_ONE, EPERM)                          \
	F(file, fchownat, MINUS_ONE, EPERM)                        \
	F(loop, epoll_create1, MINUS_ONE, EMFILE)                  \
	F(loop, epoll_ctl, MINUS_ONE, ENOSPC)                      \
	F(loop, epoll_wait, MINUS_ONE, EINTR)                      \
	F(loop, poll, MINUS_ONE, EINTR)                            \
	F(loop, nanosleep, MINUS_ONE, EINTR)                       \
	F(loop, signalfd, MINUS_ONE, EMFILE)                       \
	F(loop, inotify_init1, MINUS_ONE, EMFILE)                  \
	F(loop, inotify_add_watch, MINUS_ONE, ENOSPC)              \
	F(loop, sigprocmask, MINUS_ONE, EINVAL)                    \
	F(loop, prctl, MINUS_ONE, EINVAL)                          \
	F(loop, socket, MINUS_ONE, EMFILE)                         \
	F(loop, connect, MINUS_ONE, ECONNREFUSED)                  \
	F(loop, bind, MINUS_ONE, EADDRNOTAVAIL)                    \
	F(loop, listen, MINUS_ONE, EADDRINUSE)                     \
	F(loop, setsockopt, MINUS_ONE, ENOMEM)                     \
	F(loop, sendto, MINUS_ONE, ECONNREFUSED)                   \
	F(loop, gethostname, MINUS_ONE, EFAULT)                    \
	F(loop, eventfd, MINUS_ONE, EMFILE)                        \
	F(loop, getrandom, MINUS_ONE, EINTR)                       \
	F(loop, getpwnam, NOTHING, EIO)                            \
	F(loop, getpwuid, NOTHING, EIO)                            \
	F(loop, getgrnam, NOTHING, EIO)                            \
	F(user, initgroups, MINUS_ONE, EPERM)                      \
	F(user, setegid, MINUS_ONE, EPERM)                         \
	F(user, seteuid, MINUS_ONE, EPERM)                         \
	F(user, setresgid, MINUS_ONE, EPERM)                       \
	F(user, setresuid, MINUS_ONE, EPERM)                       \
	F(http, MHD_start_daemon, NOTHING, ENOMEM)                 \
	F(http, MHD_get_daemon_info, NOTHING, EINVAL)              \
	F(http, MHD_create_response_from_buffer, NOTHING, ENOMEM)  \
	F(http, MHD_add_response_header, NOTHING, ENOMEM)          \
	F(http, MHD_queue_response, NOTHING, ENOMEM)               \
	F(http, MHD_run, NOTHING, EINVAL)                          \
	F(http, MHD_get_timeout, NOTHING, EINVAL)                  \
	F(yaml, yaml_parser_initialize, NOTHING, ENOMEM)           \
	F(yaml, yaml_parser_load, NOTHING, ENOMEM)                 \
	NATS_FUNCTIONS(F)

struct function {
	const char *class, *name;
	enum manner manner;
	int error;
	void *real;
	atomic_long calls; /* of its class, in the first one of that */
};

__attribute__((visibility("hidden"))) struct function inject_functions[] = {
#define F(class, name, manner, error) { #class, #name, manner, error, NULL, 0 },
	FUNCTIONS(F)
#undef F
};

enum {
#define F(class, name, manner, error) NUMBER_##name,
	FUNCTIONS(F)
#undef F
};

static uintptr_t base, begin, end; /* of the executable's code */
static char wanted[64];
static long target = -1;
static atomic_long calls;

static int executable_find(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size, (void)arg;
	base = info->dlpi_addr;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type == PT_LOAD && p->p_flags & PF_X) {
			begin = base + p->p_vaddr;
			end = begin + p->p_memsz;
		}
	}
	return 1; /* it is the first one */
}

static void tell(const char *text, size_t len)
{
	const char *path = getenv("INJECT_LOG");
	int fd =
		path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT, 0644)
		     : -1;

	if (fd < 0)
		return;
	syscall(SYS_write, fd, text, len);
	syscall(SYS_close, fd);
}

__attribute__((constructor)) static void inject_open(void)
{
	const char *text = getenv("INJECT");
	long at;

	dl_iterate_phdr(executable_find, NULL);
	if (text && sscanf(text, "%63[A-Za-z0-9_]:%ld", wanted, &at) == 2)
		target = at;
}

/* Where the call was made, and by whom that was called, as far as there are frame pointers. */
static size_t callers(char *text, size_t size, uintptr_t caller, const uintptr_t *frame)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);
	size_t n = 0;

	for (int depth = 0; depth < 8 && caller >= begin && caller < end; depth++) {
		n += (size_t)snprintf(text + n, size - n, " %lx", caller - base);
		if ((uintptr_t)frame <= here || (uintptr_t)frame - here > 1 << 20)
			break;
		caller = frame[1];
		frame = (const uintptr_t *)frame[0];
	}
	return n;
}

static int is_ours(const struct function *f, uintptr_t caller, long number)
{
	if (f == &inject_functions[NUMBER_syscall] &&
	    (number == SYS_bpf || number == SYS_perf_event_open))
		return 1;
	/* It stands for libzmq's own call, which ends the program for errors that do not happen. */
	if (f == &inject_functions[NUMBER_syscall] && number == SYS_accept4)
		return 0;
	return caller >= begin && caller < end;
}

/* Returns 0 for a call that is not to be told; else its number within what is looked for. */
static long count(struct function *f)
{
	struct function *first = inject_functions;

	if (target > 0)
		return !strcmp(f->class, wanted) || !strcmp(f->name, wanted) ? ++calls : 0;
	while (strcmp(first->class, f->class))
		first++;
	return ++first->calls;
}

/* What the stub goes on with: the real function, or NULL for failing. */
__attribute__((visibility("hidden"))) void *inject_decide(unsigned long number, uintptr_t caller,
							  long first_argument, long command)
{
	struct function *f = &inject_functions[number];
	const uintptr_t *frame = __builtin_frame_address(0);
	char line[256];
	size_t n;
	long k;

	if (!f->real)
		f->real = dlsym(RTLD_NEXT, f->name);
	k = target >= 0 && is_ours(f, caller, first_argument) ? count(f) : 0;
	if (!k || (target && k != target))
		return f->real;
	n = target ? (size_t)snprintf(line, sizeof(line), "failed %s", f->name)
		   : (size_t)snprintf(line, sizeof(line), "call %s %ld %s", f->class, k, f->name);
	if (number == NUMBER_syscall)
		n += (size_t)snprintf(line + n, sizeof(line) - n, "_%ld_%ld", first_argument,
				      command);
	n += callers(line + n, sizeof(line) - n, caller, (const uintptr_t *)frame[0]);
	line[n++] = '\n';
	tell(line, n);
	if (!target)
		return f->real;
	if (number == NUMBER_mdb_txn_commit) /* ends the transaction, whatever it returns */
		mdb_txn_abort((MDB_txn *)first_argument);
	return NULL;
}

__attribute__((visibility("hidden"))) long inject_fail(unsigned long number)
{
	const struct function *f = &inject_functions[number];

	if (f->manner != THE_ERROR)
		errno = f->error;
	return f->manner == NOTHING	? 0
	       : f->manner == THE_ERROR ? f->error
	       : f->manner == MINUS_ONE ? -1
					: -f->error;
}

/* A file is read anew each time: the test steps the clock while the program runs. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
	uintptr_t caller = (uintptr_t)__builtin_return_address(0);
	const char *path = getenv("INJECT_CLOCK");
	char text[32] = "";
	int result = (int)syscall(SYS_clock_gettime, clock, now), fd;

	if (!path || clock != CLOCK_REALTIME || caller < begin || caller >= end)
		return result;
	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);
	if (fd >= 0) {
		syscall(SYS_read, fd, text, sizeof(text) - 1);
		syscall(SYS_close, fd);
	}
	now->tv_sec += atol(text);
	return result;
}

#define STRING(x) #x
#define TEXT(x) STRING(x)
#define F(class, name, manner, error)                                              \
	__asm__(".text\n.globl " #name "\n.type " #name ",@function\n" #name ":\n" \
		"mov $" TEXT(__COUNTER__) ", %r11d\njmp inject_stub\n");
FUNCTIONS(F)

/* Saves what arguments may be in; none of these functions takes floating-point numbers. %rax counts
 * those of variadic ones. Three words more keep the stack aligned. */
__asm__(".text\ninject_stub:\n"
	"push %rax\npush %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\npush %r11\n"
	"sub $8, %rsp\n"
	"mov %rsi, %rcx\nmov %rdi, %rdx\nmov 72(%rsp), %rsi\nmov %r11, %rdi\n"
	"call inject_decide\n"
	"add $8, %rsp\n"
	"mov %rax, %r10\n"
	"pop %r11\npop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\npop %rax\n"
	"test %r10, %r10\njz 1f\njmp *%r10\n"
	"1: mov %r11, %rdi\njmp inject_fail\n");
