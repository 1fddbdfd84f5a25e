/* Preloaded, it makes every TCP socket of a program one of MPTCP, as libmptcpwrap does. It also
   hides that the kernel refuses SO_REUSEADDR on accepted sockets of MPTCP: gloo sets that there, where
   it has no effect, and aborts. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

int socket(int family, int type, int protocol) {
    static int (*next)(int, int, int);
    if (!next) next = dlsym(RTLD_NEXT, "socket");
    int is_internet = family == AF_INET || family == AF_INET6;
    int is_stream = (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_STREAM;
    if (is_internet && is_stream && (protocol == 0 || protocol == IPPROTO_TCP))
        protocol = IPPROTO_MPTCP;
    return next(family, type, protocol);
}

int setsockopt(int descriptor, int level, int option, const void *value, socklen_t bytes) {
    static int (*next)(int, int, int, const void *, socklen_t);
    if (!next) next = dlsym(RTLD_NEXT, "setsockopt");
    int failed = next(descriptor, level, option, value, bytes);
    return level == SOL_SOCKET && option == SO_REUSEADDR ? 0 : failed;
}
