#include "cell_round_trip.h"

#include <linux/tcp.h> /* libc's own knows less of it, and both cannot be had */
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

uint32_t tr_round_trip_us(int socket) {
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size)) return 0;
    if (size < offsetof(struct tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt) return 0;
    return info.tcpi_min_rtt == UINT32_MAX ? 0 : info.tcpi_min_rtt;
}
